"""One model: its placements, measured and predicted."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from statistics import median

from benchmarks.cells import read_results_of
from benchmarks.emulated_cluster import control_groups
from benchmarks.prediction_accuracy.report import Prediction
from drlpp.costs.profile import NO_FACTORS, Profile
from drlpp.costs.profiles.short_runs import (
    SHORT_MINIBATCHES,
    run_short,
    short_placements,
    with_short_runs,
)
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import BASELINES, PLANNERS, PlanningProblem
from drlpp.planners.search.random_placements import random_placement
from drlpp.runtime import ClusterSession
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster


class Emulation(StrEnum):
    """Of slower accelerators."""

    DILATION = "dilation"
    QUOTAS = "quotas"


class Cell(Record):
    """What is measured.

    Attributes:
        model: its name in the zoo.
        emulation: by what accelerators are slow.
        workers: emulated accelerators.
        speed: of each.
        placements: of the model.
        minibatches: of a measurement.
        times: measurements of a placement.
        seed: of the random placements.
    """

    model: str
    emulation: Emulation
    workers: int
    speed: float
    placements: int
    minibatches: int
    times: int
    seed: int


class Compared(Record):
    """A cell and what came out."""

    cell: Cell
    predictions: tuple[Prediction, ...]


def read_results(path: Path) -> list[Compared]:
    """Return all results in ``path``, as :func:`benchmarks.cells.read_results_of` does."""
    return read_results_of("benchmarks.prediction_accuracy", Compared, path)


@contextmanager
def profiled(cell: Cell) -> Iterator[tuple[ClusterSession, Profile, Cluster]]:
    """Yield workers of a model, its profile, and what they are for planners."""
    dilates = cell.emulation is Emulation.DILATION
    quotas = [cell.speed] * cell.workers
    with ExitStack() as stack:
        session = stack.enter_context(
            ClusterSession(cell.model, cell.workers, speeds=quotas if dilates else None)
        )
        if dilates:
            yield session, *session.profile()
            return
        # The median of an operator that is over before its quota is would be that of a whole core;
        # so they are timed without quotas. What throttling takes the short runs tell, with them.
        profile, cluster = session.profile()
        slow = {"cores": None, "speed": cell.speed}
        hosts = [host.model_copy(update=slow) for host in cluster.hosts]
        cluster = cluster.with_hosts(hosts)
        session.measure(Placement.from_assignment([0] * len(session.graph), [0]), 1)
        stack.enter_context(control_groups(quotas)).hold(session.process_ids)
        profile = profile.model_copy(update={"in_pipeline": None, "replicated": None})
        runs = run_short(
            profile,
            range(cluster.accelerators),
            lambda placement: session.measure(placement, SHORT_MINIBATCHES),
        )
        yield session, with_short_runs(profile, Workload.of(profile), cluster, runs, print), cluster


def compare(cell: Cell) -> Compared:
    """Return measured and predicted seconds of the placements of one model."""
    with profiled(cell) as (session, profile, cluster):
        problem = PlanningProblem(Workload.of(profile), cluster)
        run = set(short_placements(profile, range(cell.workers)))
        run |= set(short_placements(profile, range(2)))
        chosen = list(choose_placements(problem, cell, run))
        seconds: list[list[float]] = [[] for _ in chosen]
        for _ in range(cell.times):
            for number, placement in enumerate(chosen):
                outcome = session.measure(placement, cell.minibatches)
                if isinstance(outcome, Measurement):
                    seconds[number].append(outcome.seconds_per_minibatch)

    def predicted(workload: Workload, placement: Placement) -> float:
        return simulate(workload, cluster, placement, session.method).seconds_per_minibatch

    whole = problem.workload
    alone = replace(whole, in_pipeline=NO_FACTORS, replicated=NO_FACTORS)
    predictions = [
        Prediction(
            model=cell.model,
            configuration=placement.configuration,
            branching=branches(problem, placement),
            measured=median(times),
            simulated=predicted(whole, placement),
            alone=predicted(alone, placement),
            by_rule=problem.predict(placement).seconds_per_minibatch,
            spread=whole.error_bar(placement),
        )
        for placement, times in zip(chosen, seconds, strict=True)
        if times
    ]
    return Compared(cell=cell, predictions=tuple(predictions))


def choose_placements(
    problem: PlanningProblem, cell: Cell, but: Collection[Placement]
) -> Iterator[Placement]:
    """Yield the planners' placements, then random ones that differ from all before and ``but``.

    A random placement is nearly always far from balanced, and users run others. So every second one
    is the best of many; every third has branches, if any do.
    """
    known = set(but)
    for name in BASELINES:
        placement = PLANNERS[name](problem).placement
        if placement not in known:
            known.add(placement)
            yield placement
    draw = random.Random(cell.seed)
    for number in range(20 * cell.placements):
        if len(known) - len(but) >= cell.placements:
            break
        candidates = [random_placement(problem, draw) for _ in range(1 + 30 * (number % 2))]
        if number % 3 == 0:
            candidates = [random_placement(problem, draw) for _ in range(200)]
            candidates = [p for p in candidates if branches(problem, p)] or candidates
        placement = min(candidates, key=lambda p: problem.predict(p).seconds_per_minibatch)
        if placement not in known:
            known.add(placement)
            yield placement


def branches(problem: PlanningProblem, placement: Placement) -> bool:
    """Return whether two stages run side by side: neither needs the other."""
    order = problem.workload.order()
    stage_of = placement.stage_of_operator(len(problem.workload))
    edges = {(stage_of[a], stage_of[b]) for a, b in order.edges}
    return any((k, k + 1) not in edges for k in range(len(placement.stages) - 1))
