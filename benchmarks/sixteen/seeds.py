"""How much what the search before all measurements finds depends on its seed."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from benchmarks.sixteen.runs import Cell, Instance
from drlpp.cli.command_line import build_console
from drlpp.planners import Limits
from drlpp.planners.candidates import search


def seeds(
    graph: Annotated[str, typer.Option(help="A graph or a profile of the zoo.")],
    accelerators: Annotated[int, typer.Option(help="How many.")] = 8,
    bandwidth: Annotated[float, typer.Option(help="Of all links, in bytes per second.")] = 1.25e8,
    speeds: Annotated[str, typer.Option(help="Equal or unequal.")] = "equal",
    searches: Annotated[int, typer.Option(min=1, help="As many seeds.")] = 5,
    evaluations: Annotated[int, typer.Option(min=1, help="Of each.")] = 2400,
) -> None:
    """Search with the true costs from the planners' placements, once with every seed."""
    console = build_console()
    instance = Instance(
        Cell(
            graph=graph,
            accelerators=accelerators,
            bandwidth=bandwidth,
            wrong=False,
            unequal=speeds == "unequal",
            noise=0.0,
            seed=0,
        )
    )
    plans = instance.true_plans
    best = min(map(instance.judge.exactly, plans))
    console.print(f"{graph}: the best of the planners' placements {best:.5f} s")
    for seed in range(searches):
        begin = time.process_time()
        found = search(instance.judge.anew(), plans, Limits(judged=evaluations), seed)
        console.print(
            f"seed {seed}: {found.seconds:.5f} s, {found.candidate.configuration} with "
            f"{found.candidate.method}; {time.process_time() - begin:.1f} s of a processor"
        )
