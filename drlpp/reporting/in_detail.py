"""Who is drawn in detail: the best of every kind in a race, the winner first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from drlpp.capturing.graph import OpGraph
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender
from drlpp.reporting.run_files import RunFiles
from drlpp.reporting.speed_charts import names_of
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster


@dataclass(frozen=True)
class Detail:
    """A candidate that is drawn in detail.

    Attributes:
        name: as the race has it, and who else found the same.
        candidate: a placement and its method.
        contender: of the race; None without one.
    """

    name: str
    candidate: Candidate
    contender: Contender | None = None


def details_of(files: RunFiles) -> tuple[Detail, ...]:
    """Return who is drawn in detail: of a race the best of every kind, else the placement.

    So a winner stands beside what it won over: the agent's best beside the best rivals.
    """
    if files.comparison is not None:
        return tuple(_best_of_every_kind(files.comparison))
    if files.placement is None or files.profile is None:
        return ()
    placement = files.placement.resolve(files.profile.graph)
    candidate = Candidate(placement, files.placement.method)
    return (Detail(files.placement.configuration, candidate),)


def _best_of_every_kind(comparison: Comparison) -> Iterator[Detail]:
    named = zip(names_of(comparison.distinct), comparison.distinct, strict=True)
    ran = [(name, one) for name, one in named if one.seconds]
    rounds = max((len(one.seconds) for _, one in ran), default=0)
    # Those that were dropped early are behind those that ran on.
    ran.sort(key=lambda of: (len(of[1].seconds) < rounds, median(of[1].seconds)))
    known: set[str] = set()
    for name, one in ran:
        if one.candidate is not None and not known.issuperset(one.names):
            known.update(one.names)
            yield Detail(name, one.candidate, one)


def alone(graph: OpGraph, cluster: Cluster) -> Detail:
    """Return what stands beside a placement without rivals: the fastest accelerator by itself."""
    fastest = max(range(cluster.accelerators), key=lambda number: cluster.speeds[number])
    stage = Stage(operators=tuple(range(len(graph))), accelerators=(fastest,))
    return Detail(f"accelerator {fastest} alone", Candidate(Placement(stages=(stage,)), Method()))
