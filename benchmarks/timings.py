"""How long do capturing, planning, simulating, searching, deploying and measuring take?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from pandas import DataFrame

from benchmarks.search.graphs import graph_of
from benchmarks.study import Needs, Row, Study
from drlpp.capturing.capture import capture
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.costs.workload import Workload
from drlpp.errors import RunFailure
from drlpp.io.documents import Record
from drlpp.io.formatting import seconds_text
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import Limits, PlanningProblem, Space, exact
from drlpp.planners.search import Judge, search
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Link, local_cluster

_LINK = Link(bandwidth_bytes_per_second=1.25e9, latency_seconds=5e-5)


class What(StrEnum):
    """What is timed."""

    CAPTURE = "capture"
    PLAN = "plan, exact"
    SIMULATE = "simulate"
    SEARCH = "search, a candidate"
    DEPLOY = "deploy"
    MEASURE = "measure, a minibatch"


class Case(Record):
    """What is timed on which model.

    Attributes:
        what: is done.
        model: of the zoo; for a search a branching graph.
        accelerators: that are planned for, or workers.
        times: how often; a search looks at a hundred times as many candidates.
    """

    what: What
    model: str
    accelerators: int = 1
    times: int = 5


class Timing(Row):
    """Seconds of each time, and how large it was: operators, or actions that were played."""

    case: Case
    size: int
    seconds: tuple[float, ...]


class Timings(Study[Case, Timing]):
    """Everything but training; times of workers are on the clock, all others the processor's."""

    name = "timings"
    question = "How long do capturing, planning, simulating, searching and deploying take?"
    row = Timing
    needs = Needs(quiet=True, hours=0.1)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return what is timed; ``seeds`` is how often."""
        if short:
            return [
                Case(what=what, model="towers-40" if what is What.SEARCH else "awd_lm", times=2)
                if what in (What.CAPTURE, What.SEARCH)
                else Case(what=what, model="awd_lm", accelerators=2, times=2)
                for what in What
            ]
        times = seeds or 5
        return [
            *(Case(what=What.CAPTURE, model=m, times=times) for m in ("alexnet", "gnmt8")),
            *(
                Case(what=what, model=model, accelerators=count, times=times)
                for what in (What.PLAN, What.SIMULATE)
                for model in ("alexnet", "gnmt8")
                for count in (4, 16, 64)
            ),
            *(
                Case(what=What.SEARCH, model="towers-40", accelerators=count, times=times)
                for count in (4, 8, 16)
            ),
            Case(what=What.DEPLOY, model="alexnet", accelerators=4, times=4 * times),
            Case(what=What.MEASURE, model="alexnet", accelerators=4, times=2 * times),
        ]

    def run(self, case: Case) -> Timing:
        """Do it as often as the case says."""
        size, seconds = _TIMED[case.what](case)
        return Timing(case=case, size=size, seconds=tuple(seconds))

    def table(self, rows: Sequence[Timing]) -> Mapping[str, DataFrame]:
        """Return medians, and how far single times are from each other."""
        lines = [
            {
                "what": row.case.what.value,
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


def timed(call: Callable[[], object], times: int, clock: Callable[[], float]) -> list[float]:
    """Return the seconds of every call, after one that is not counted."""
    call()
    seconds = []
    for _ in range(times):
        begin = clock()
        call()
        seconds.append(clock() - begin)
    return seconds


def _even(operators: int, accelerators: int) -> Placement:
    """Return stages of as many operators, or replicas of one where there are too few."""
    if operators < accelerators:
        return Placement.from_assignment([0] * operators, [0] * accelerators)
    stages = [operator * accelerators // operators for operator in range(operators)]
    return Placement.from_assignment(stages, list(range(accelerators)))


def _problem(case: Case) -> PlanningProblem:
    graph = capture(ModelReference.named(case.model)).graph
    cluster = local_cluster(case.accelerators, _LINK)
    return PlanningProblem(Workload.of(estimate_profile(graph)), cluster)


def _capturing(case: Case) -> tuple[int, list[float]]:
    model = ModelReference.named(case.model)
    seconds = timed(lambda: capture(model), case.times, time.process_time)
    return len(capture(model).graph), seconds


def _planning(case: Case) -> tuple[int, list[float]]:
    problem = _problem(case)
    seconds = timed(lambda: exact(problem), case.times, time.process_time)
    return len(problem.workload), seconds


def _simulating(case: Case) -> tuple[int, list[float]]:
    problem = _problem(case)
    placement = _even(len(problem.workload), case.accelerators)

    def play() -> float:
        return simulate(problem.workload, problem.cluster, placement).seconds_per_minibatch

    return len(problem.workload), timed(play, case.times, time.process_time)


def _searching(case: Case) -> tuple[int, list[float]]:
    workload = Workload.of(graph_of(case.model))
    problem = PlanningProblem(workload, local_cluster(case.accelerators, _LINK))
    space = Space(Method())
    seconds = []
    for seed in range(case.times):
        judge, begin = Judge(problem, space), time.process_time()
        search(judge, [], Limits(judged=100 * case.times), seed)
        seconds.append((time.process_time() - begin) / judge.judged)
    return len(workload), seconds


def _deploying(case: Case) -> tuple[int, list[float]]:
    with ClusterSession(ModelReference.named(case.model), case.accelerators) as session:
        placements = [
            _even(len(session.graph), case.accelerators),
            Placement.from_assignment([0] * len(session.graph), [0] * case.accelerators),
        ]
        seconds = [
            session.deploy(placements[number % 2]).seconds for number in range(case.times + 2)
        ]
        # The first of each compiles what later ones find.
        return len(session.graph), seconds[2:]


def _measuring(case: Case) -> tuple[int, list[float]]:
    with ClusterSession(ModelReference.named(case.model), case.accelerators) as session:
        placement = _even(len(session.graph), case.accelerators)
        seconds = []
        for _ in range(case.times):
            outcome = session.measure(placement, 30)
            if not isinstance(outcome, Measurement):
                raise RunFailure(f"{case.model} could not be measured: {outcome.reason}")
            seconds.append(outcome.seconds_per_minibatch)
        return len(session.graph), seconds


_TIMED: dict[What, Callable[[Case], tuple[int, list[float]]]] = {
    What.CAPTURE: _capturing,
    What.PLAN: _planning,
    What.SIMULATE: _simulating,
    What.SEARCH: _searching,
    What.DEPLOY: _deploying,
    What.MEASURE: _measuring,
}

STUDY = Timings()
