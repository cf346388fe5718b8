"""How many candidates does the offline search look at in a second?

    python -m benchmarks.speed search

A branching graph of 40 operators (``benchmarks.search.graphs.py``) on 4, 8 and 16 equal
accelerators with links of 1.25 GB/s; the depth varies, and the search begins with what planners
propose. Seconds are the processor's; equal candidates count once.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer
from pandas import DataFrame

from benchmarks.machine import this_machine
from benchmarks.report import terminal
from benchmarks.search.graphs import graph_of
from drlpp.cli.command_line import build_console
from drlpp.costs.workload import Workload
from drlpp.planners import Limits, PlanningProblem, Space, best_simulated
from drlpp.planners.best_searched import starts_of
from drlpp.planners.candidates import Judge, search
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster

ACCELERATORS = (4, 8, 16)
_GRAPH = "towers-40"
_LINK = Link(bandwidth_bytes_per_second=1.25e9, latency_seconds=5e-5)
_FOREVER = 10**9


def main(
    candidates: Annotated[int, typer.Option(min=1, help="Of each search.")] = 1500,
) -> None:
    """Time searches on 4, 8 and 16 accelerators."""
    rows = [timed(accelerators, candidates) for accelerators in ACCELERATORS]
    console = build_console()
    console.print(terminal(DataFrame(rows), f"Searching {_GRAPH}", names=0))
    console.print(str(this_machine()))


def timed(accelerators: int, candidates: int) -> dict[str, str]:
    """Return what a search came to, as text."""
    workload = Workload.of(graph_of(_GRAPH))
    problem = PlanningProblem(workload, local_cluster(accelerators, _LINK))
    space = Space(Method())
    planned = best_simulated(problem, space.method, deepen=True)
    starts = starts_of(space, planned.proposals)
    limits = Limits(judged=candidates, steps=_FOREVER, patience=_FOREVER)
    begin = time.process_time()
    found = search(Judge(problem, space), starts, limits, seed=0)
    seconds = time.process_time() - begin
    return {
        "accelerators": str(accelerators),
        "candidates": str(found.judged),
        "of them simulated": str(found.played),
        "candidates in a second": f"{found.judged / seconds:.0f}",
    }
