"""What a depth for each link, and recomputation for each stage, give over one for all: searched.

    python -m benchmarks.in_flight searched --document benchmarks/in_flight/README.md

Two searches look at equally many candidates, from the same starts, with the same seeds: one whose
methods have one number for all links and one answer for all stages, and one whose methods have one
for each. Everything is simulated.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Annotated

import typer
from pandas import DataFrame

from benchmarks import PROFILES
from benchmarks.learning.branching_graphs import graph_of
from benchmarks.options import DocumentOption, JsonOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.cli.command_line import build_console
from drlpp.costs.files.profile_files import read_profile
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.candidate import Candidate
from drlpp.planners import Limits, PlanningProblem, Space, Vary, best_simulated
from drlpp.planners.best_searched import starts_of
from drlpp.planners.candidates import Judge, search
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link

BEGIN = "<!-- depths of links: written by benchmarks.in_flight -->"
END = "<!-- end of depths of links -->"

GRAPHS = ("vgg16", "gnmt8", "towers-40", "u-net-44")

_ACCELERATORS = 6
_LATENCY_SECONDS = 5e-5
_TIGHT = 0.6
"""Of the memory that the planners' best needs, where memory is limited."""

_FOREVER = 10**9


class OneForAll(Space):
    """The methods that have one depth for all links, and one answer for all stages."""

    def changed(self, method: Method, stages: int, draw: random.Random) -> Method:
        """Return a method one step away, as if there were one stage."""
        del stages
        return super().changed(method, 1, draw)


@dataclass(frozen=True)
class Row:
    """Two searches of every seed.

    Attributes:
        graph: of operators.
        links: between the accelerators.
        question: what varies, and what is limited.
        one: seconds per minibatch with one value for all, by seed; None where nothing fits.
        each: likewise with one for each.
        method: of the fastest with one for each.
    """

    graph: str
    links: str
    question: str
    one: tuple[float | None, ...]
    each: tuple[float | None, ...]
    method: str

    @property
    def gains(self) -> list[float]:
        """How much less time the second takes, by seed, as a part."""
        pairs = zip(self.one, self.each, strict=True)
        return [1 - each / one for one, each in pairs if one is not None and each is not None]

    @property
    def gain_of_best(self) -> float | None:
        """The same of the fastest that any seed found, in which luck counts for less."""
        one, each = (min(filter(None, seconds), default=None) for seconds in (self.one, self.each))
        return None if one is None or each is None else 1 - each / one


QUESTIONS = {
    "depth": frozenset({Vary.DEPTH}),
    "depth, not staler": frozenset({Vary.DEPTH}),
    "depth and recomputation, little memory": frozenset({Vary.DEPTH, Vary.RECOMPUTE}),
}


def main(
    graphs: Annotated[str, typer.Option(help="Which.")] = ",".join(GRAPHS),
    evaluations: Annotated[int, typer.Option(min=1, help="Candidates of a search.")] = 2000,
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 3,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search with one depth for all links, and with one for each."""
    rows = list(compare(graphs.split(","), evaluations, seeds))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        build_console().print(terminal(table_of(rows)))
        build_console().print(summary(rows))
    if document is not None:
        write_between(document, BEGIN, END, f"{markdown(table_of(rows))}\n\n{summary(rows)}")


def compare(graphs: Sequence[str], evaluations: int, seeds: int) -> Iterator[Row]:
    """Yield all rows, by graph, links and question."""
    for name, (links, cluster) in product(graphs, clusters().items()):
        profile = profile_of(name)
        free = PlanningProblem(Workload.of(profile), cluster)
        needed = best_simulated(free, Method()).best.depth.memory_bytes
        limited = cluster.with_hosts(
            host.model_copy(update={"memory_bytes": _TIGHT * needed}) for host in cluster.hosts
        )
        for question, vary in QUESTIONS.items():
            tight = Vary.RECOMPUTE in vary
            most = _ACCELERATORS - 1 if "staler" in question else None
            problem = replace(free, cluster=limited if tight else cluster)
            spaces = [kind(Method(), vary, most) for kind in (OneForAll, Space)]
            starts = _starts(problem, spaces[0])
            one, each = (
                [_searched(problem, space, starts, evaluations, seed) for seed in range(seeds)]
                for space in spaces
            )
            found = [(seconds, str(c.method)) for seconds, c in each if seconds is not None and c]
            yield Row(
                graph=name,
                links=links,
                question=question,
                one=tuple(seconds for seconds, _ in one),
                each=tuple(seconds for seconds, _ in each),
                method=min(found)[1] if found else "",
            )


def profile_of(name: str) -> Profile:
    """Return a profile of the zoo, or a made-up branching graph."""
    path = PROFILES / f"{name}.json"
    return read_profile(path) if path.exists() else graph_of(name)


def clusters() -> dict[str, Cluster]:
    """Return six accelerators with equal links, and on two hosts with a slow network."""

    def link(bandwidth: float) -> Link:
        return Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=_LATENCY_SECONDS)

    half = _ACCELERATORS // 2
    return {
        "1 Gbit/s": Cluster(
            hosts=(Host(name="one", accelerators=_ACCELERATORS),), within_host=link(1.25e8)
        ),
        "10 and 1 Gbit/s": Cluster(
            hosts=tuple(Host(name=name, accelerators=half) for name in ("one", "other")),
            within_host=link(1.25e9),
            between_hosts=link(1.25e8),
        ),
    }


def _starts(problem: PlanningProblem, space: Space) -> list[Candidate]:
    """Return what planners propose; nothing, where none of it fits."""
    with suppress(InvalidInput):
        planned = best_simulated(problem, space.method)
        return starts_of(space, planned.proposals)
    return []


def _searched(
    problem: PlanningProblem,
    space: Space,
    starts: Sequence[Candidate],
    evaluations: int,
    seed: int,
) -> tuple[float | None, Candidate | None]:
    """Return the best of so many candidates; None if nothing fits."""
    limits = Limits(judged=evaluations, steps=_FOREVER, patience=_FOREVER)
    try:
        found = search(Judge(problem, space), starts, limits, seed)
    except NothingFits:
        return None, None
    return found.seconds, found.candidate


def table_of(rows: Sequence[Row]) -> DataFrame:
    """Return the gains as text, of the best and by seed, a column for each question."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        texts = cells.setdefault((row.graph, row.links), {})
        gains = sorted(100 * gain for gain in row.gains)
        best = row.gain_of_best
        texts[row.question] = (
            f"{100 * best:.1f} ({gains[0]:.1f} to {gains[-1]:.1f})"
            if gains and best is not None
            else "nothing fits"
            if not any(row.each)
            else "fits with one for each only"
        )
    return DataFrame(
        [{"graph": graph, "links": links, **texts} for (graph, links), texts in cells.items()]
    )


def summary(rows: Sequence[Row]) -> str:
    """Say for every question what the searches with one for each gain."""
    parts = []
    for question in QUESTIONS:
        asked = [row for row in rows if row.question == question]
        best = [row.gain_of_best for row in asked if row.gain_of_best is not None]
        pairs = [gain for row in asked for gain in row.gains]
        if pairs:
            parts.append(
                f"{question}: the best of all seeds {_counts(best)}, single searches "
                f"{_counts(pairs)}"
            )
    return "; ".join(parts) + "."


def _counts(gains: Sequence[float]) -> str:
    faster, slower = (sum(sign * gain > 0.01 for gain in gains) for sign in (1, -1))
    median = 100 * statistics.median(gains)
    return (
        f"{median:.1f}% faster in the median of {len(gains)}, by more than 1% in {faster}, slower "
        f"by more than 1% in {slower}"
    )
