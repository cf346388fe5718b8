"""From one stage on every accelerator to two, and back: placements that searches go on from."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy

from drlpp.placement.placement import Placement, Stage
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.planners.search.moves import PlacementState
from drlpp.planners.search.random_placements import random_order


def evened(
    state: PlacementState, problem: PlanningProblem, stages_held: int
) -> PlacementState | None:
    """Return as even a split over a state's accelerators, each of which holds so many stages.

    Operators keep the order of their stages, accelerators that of the first that each holds, and
    faster ones get more. Replicas get stages of their own, as far as there are operators.

    Returns:
        The split; None if there are too few accelerators or operators for two stages on each.
    """
    order = sorted(range(len(state.stage_of)), key=lambda operator: state.stage_of[operator])
    workers = dict.fromkeys(worker for held in state.holders for worker in sorted(held))
    chosen = list(workers)[: len(order) // stages_held]
    if stages_held > 1 and len(chosen) < 2:
        return None
    held = [frozenset({worker}) for worker in chosen]
    holders = held + held[::-1] * (stages_held - 1)
    speeds = [problem.cluster.speeds[worker] for (worker,) in holders]
    ends = numpy.cumsum(problem.workload.seconds[order])
    borders = numpy.cumsum(speeds)[:-1] / sum(speeds) * ends[-1]
    cuts = (numpy.searchsorted(ends, borders) + 1).tolist()
    for number in range(len(cuts)):
        # Every stage has an operator.
        least, most = cuts[number - 1] + 1 if number else 1, len(order) - len(cuts) + number
        cuts[number] = min(max(cuts[number], least), most)
    stage_of = [0] * len(order)
    for stage, (begin, end) in enumerate(pairwise([0, *cuts, len(order)])):
        for operator in order[begin:end]:
            stage_of[operator] = stage
    return PlacementState(tuple(stage_of), tuple(holders))


def random_folded(problem: PlanningProblem, draw: random.Random) -> Placement | None:
    """Draw a valid placement whose accelerators hold two stages; None if there is none."""
    most = min(problem.cluster.accelerators, len(problem.workload) // 2)
    if most < 2:
        return None
    held = draw.sample(range(problem.cluster.accelerators), draw.randint(2, most))
    order = random_order(problem.workload, draw)
    inner = draw.sample(range(1, len(order)), 2 * len(held) - 1)
    cuts = pairwise([0, *sorted(inner), len(order)])
    return Placement(
        stages=tuple(
            Stage(operators=tuple(sorted(order[begin:end])), accelerators=(accelerator,))
            for (begin, end), accelerator in zip(cuts, [*held, *held[::-1]], strict=True)
        )
    )
