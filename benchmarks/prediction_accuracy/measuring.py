"""One model: its placements, measured and predicted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.prediction_accuracy.report import (
    Prediction,
)
from benchmarks.results_file import read_results_of
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import BASELINES, PLANNERS, PlanningProblem
from drlpp.planners.search.random_search import random_placement
from drlpp.runtime import ClusterSession
from drlpp.simulator import simulate


class Cell(Record):
    """What is measured.

    Attributes:
        model: its name in the zoo.
        workers: emulated accelerators.
        speed: of each.
        placements: of the model.
        minibatches: of a measurement.
        times: measurements of a placement.
        seed: of the random placements.
    """

    model: str
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
    """Return all results in ``path``, as :func:`benchmarks.results_file.read_results_of` does."""
    return read_results_of("benchmarks.prediction_accuracy", Compared, path)


def compare(cell: Cell) -> Compared:
    """Return measured and predicted seconds of the placements of one model."""
    workers = cell.workers
    with ClusterSession(cell.model, workers, speeds=[cell.speed] * workers) as session:
        profile, cluster = session.profile()
        problem = PlanningProblem(Workload.of(profile), cluster)
        chosen = list(choose_placements(problem, cell))
        seconds: list[list[float]] = [[] for _ in chosen]
        for _ in range(cell.times):
            for number, placement in enumerate(chosen):
                outcome = session.measure(placement, cell.minibatches)
                if isinstance(outcome, Measurement):
                    seconds[number].append(outcome.seconds_per_minibatch)
    predictions = [
        Prediction(
            model=cell.model,
            configuration=placement.configuration,
            branching=branches(problem, placement),
            measured=median(times),
            simulated=simulate(
                problem.workload, cluster, placement, session.method, cell.minibatches
            ).seconds_per_minibatch,
            by_rule=problem.predict(placement).seconds_per_minibatch,
        )
        for placement, times in zip(chosen, seconds, strict=True)
        if times
    ]
    return Compared(cell=cell, predictions=tuple(predictions))


def choose_placements(problem: PlanningProblem, cell: Cell) -> Iterator[Placement]:
    """Yield the planners' placements, then random ones that differ from all before.

    A random placement is nearly always far from balanced, and users run others. So every second one
    is the best of many; every third has branches, if any do.
    """
    known: set[Placement] = set()
    for name in BASELINES:
        placement = PLANNERS[name](problem).placement
        if placement not in known:
            known.add(placement)
            yield placement
    draw = random.Random(cell.seed)
    for number in range(20 * cell.placements):
        if len(known) >= cell.placements:
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
