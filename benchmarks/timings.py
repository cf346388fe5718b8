"""How long do capturing, planning, simulating, searching, deploying and measuring take?"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from pandas import DataFrame

from benchmarks.deep_models import even_stages
from benchmarks.search.graphs import graph_of
from benchmarks.study import Needs, Row, Study
from drlpp.capturing.capture import capture
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import RunFailure
from drlpp.io.documents import Record
from drlpp.io.formatting import seconds_text
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import (
    PLANNERS,
    Limits,
    PlanningProblem,
    Space,
    baseline_plans,
    starts_of,
)
from drlpp.planners.search import Judge, search
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Link, local_cluster

_LINK = Link(bandwidth_bytes_per_second=1.25e9, latency_seconds=5e-5)
_SEARCH_SECONDS = 60


class Case(Record):
    """What is timed on which model.

    Attributes:
        what: is done, one of :data:`TIMED`.
        model: of the zoo; for a search a branching graph.
        accelerators: that are planned for, or workers.
        times: how often; searches have other seeds.
    """

    what: str
    model: str
    accelerators: int = 1
    times: int = 5


class Timing(Row):
    """Seconds of each time, and the operators of the graph."""

    case: Case
    size: int
    seconds: tuple[float, ...]


class Timings(Study[Case, Timing]):
    """Everything but training; times of workers are on the clock, all others the processor's."""

    name = "timings"
    question = "How long do capturing, planning, simulating, searching and deploying take?"
    row = Timing
    needs = Needs(quiet=True, hours=0.5)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return what is timed; ``seeds`` is how often."""
        if short:
            return [
                Case(what=what, model="towers-40" if what == _SEARCH else "awd_lm", times=2)
                for what in TIMED
            ]
        return [
            Case(what=what, model=model, accelerators=count, times=times * (seeds or 5))
            for what, models, accelerators, times in _CASES
            for model in models
            for count in accelerators
        ]

    def run(self, case: Case) -> Timing:
        """Do it as often as the case says."""
        size, seconds = TIMED[case.what](case)
        return Timing(case=case, size=size, seconds=tuple(seconds))

    def table(self, rows: Sequence[Timing]) -> Mapping[str, DataFrame]:
        """Return medians, and how far single times are from each other."""
        lines = [
            {
                "what": row.case.what,
                "model": row.case.model,
                "accelerators": str(row.case.accelerators),
                "operators": f"{row.size:,}",
                "times": str(len(row.seconds)),
                "median": seconds_text(statistics.median(row.seconds)),
                "slowest over fastest": f"{max(row.seconds) / min(row.seconds):.2f}",
            }
            for row in rows
        ]
        return {"Seconds": DataFrame(lines)}


Timed = tuple[int, list[float]]
"""Operators, and seconds of each time."""


def _timed(call: Callable[[], object], times: int) -> list[float]:
    """Return the processor's seconds of every call, after one that is not counted."""
    call()
    seconds = []
    for _ in range(times):
        begin = time.process_time()
        call()
        seconds.append(time.process_time() - begin)
    return seconds


def _problem(case: Case) -> PlanningProblem:
    graph = capture(ModelReference.named(case.model)).graph
    cluster = local_cluster(case.accelerators, _LINK)
    return PlanningProblem(Workload.of(Profile.estimated(graph)), cluster)


def _capturing(case: Case) -> Timed:
    model = ModelReference.named(case.model)
    return len(capture(model).graph), _timed(lambda: capture(model), case.times)


def _planning(case: Case) -> Timed:
    problem = _problem(case)
    return len(problem.workload), _timed(lambda: PLANNERS["pipedream"](problem), case.times)


def _simulating(case: Case) -> Timed:
    problem, operators = _problem(case), len(_problem(case).workload)
    stages = min(case.accelerators, operators)
    # Stages of as many operators; accelerators that are left over are replicas of the last.
    placement = Placement.from_assignment(
        [operator * stages // operators for operator in range(operators)],
        [min(accelerator, stages - 1) for accelerator in range(case.accelerators)],
    )
    return operators, _timed(
        lambda: simulate(problem.workload, problem.cluster, placement), case.times
    )


class _Clocked(Judge):
    """Judges until its time is over, and knows when what is best was found."""

    def __init__(self, problem: PlanningProblem, space: Space) -> None:
        super().__init__(problem, space)
        self.gains: list[tuple[float, float]] = []
        self._begin = time.process_time()

    def __call__(self, candidate: Candidate, limit: float = math.inf) -> float:
        seconds = super().__call__(candidate, limit)
        if seconds <= limit and self.fits(candidate, seconds):
            self.gains.append((time.process_time() - self._begin, seconds))
        return seconds

    @property
    def judged(self) -> int:
        over = time.process_time() - self._begin > _SEARCH_SECONDS
        return sys.maxsize if over else super().judged


def _searching(case: Case) -> Timed:
    """Search from planners' placements, with links of 2 Gbit/s."""
    workload = Workload.of(graph_of(case.model))
    link = Link(bandwidth_bytes_per_second=2.5e8, latency_seconds=5e-5)
    problem = PlanningProblem(workload, local_cluster(case.accelerators, link))
    space = Space(Method())
    seconds = []
    for seed in range(case.times):
        judge = _Clocked(problem, space)
        starts = starts_of(space, baseline_plans(problem, space))
        search(judge, starts, Limits(sys.maxsize // 2, sys.maxsize // 2, sys.maxsize), seed)
        best = min(found for _, found in judge.gains)
        seconds.append(next(when for when, found in judge.gains if found <= 1.01 * best))
    return len(workload), seconds


def _deploying(case: Case) -> Timed:
    with ClusterSession(ModelReference.named(case.model), case.accelerators) as session:
        whole = Placement.from_assignment([0] * len(session.graph), [0] * case.accelerators)
        placements = [even_stages(session.graph, case.accelerators), whole]
        seconds = [
            session.deploy(placements[number % 2]).seconds for number in range(case.times + 2)
        ]
        # The first of each compiles what later ones find.
        return len(session.graph), seconds[2:]


def _measuring(case: Case) -> Timed:
    with ClusterSession(ModelReference.named(case.model), case.accelerators) as session:
        placement = even_stages(session.graph, case.accelerators)
        seconds = []
        for _ in range(case.times):
            outcome = session.measure(placement, 30)
            if not isinstance(outcome, Measurement):
                raise RunFailure(f"{case.model} could not be measured: {outcome.reason}")
            seconds.append(outcome.seconds_per_minibatch)
        return len(session.graph), seconds


_SEARCH = "search, to within 1% of a minute's"
TIMED: dict[str, Callable[[Case], Timed]] = {
    "capture": _capturing,
    "plan, pipedream": _planning,
    "simulate": _simulating,
    _SEARCH: _searching,
    "deploy": _deploying,
    "measure, a minibatch": _measuring,
}
_BOTH = ("alexnet", "gnmt8")
_CASES: tuple[tuple[str, tuple[str, ...], tuple[int, ...], int], ...] = (
    ("capture", _BOTH, (1,), 1),
    ("plan, pipedream", _BOTH, (4, 16, 64), 1),
    ("simulate", _BOTH, (4, 16, 64), 1),
    (_SEARCH, ("towers-90", "inception-130"), (16, 64), 1),
    ("deploy", ("alexnet",), (4,), 4),
    ("measure, a minibatch", ("alexnet",), (4,), 2),
)
"""What is done with which models, on how many accelerators, and how often as usual."""

STUDY = Timings()
