"""A long search in the simulator: placements and in-flight depths, from several starts."""

from __future__ import annotations

import random
from collections.abc import Iterable

from drlpp.planners.problem.problem import PlanningProblem
from drlpp.planners.search.moves import PlacementState, neighbour
from drlpp.schedule.method import Method
from drlpp.simulator import depth_of

State = tuple[PlacementState, int]
"""A placement, and how many more are in flight for each link than NOAM has."""

_MOST_PER_LINK = 4
_DEPTH_MOVES = 0.15
"""The share of moves that change the depth."""


def climb(
    problem: PlanningProblem, method: Method, starts: Iterable[State], evaluations: int
) -> float:
    """Climb from every start, and return the fewest seconds per minibatch that were seen.

    A change is kept if it is no slower. What does not fit into memory is not taken.

    Args:
        problem: whose seed is used.
        method: the schedule and the weight policy.
        starts: placements with their depths.
        evaluations: of each start.
    """
    draw = random.Random(problem.seed)
    known: dict[State, float] = {}

    def seconds(state: State) -> float:
        if state not in known:
            deeper = method.model_copy(update={"in_flight_per_link": state[1]})
            found = depth_of(
                problem.workload, problem.cluster, state[0].placement(), deeper, problem.memory
            )
            known[state] = found.seconds_per_minibatch if found.possible else float("inf")
        return known[state]

    for start in starts:
        state, value = start, seconds(start)
        for _ in range(evaluations):
            changed = _changed(state, problem, draw)
            if changed is None:
                break
            found = seconds(changed)
            if found <= value:
                state, value = changed, found
    return min(known.values())


def _changed(state: State, problem: PlanningProblem, draw: random.Random) -> State | None:
    placement, per_link = state
    if draw.random() < _DEPTH_MOVES:
        return placement, min(max(per_link + draw.choice((-1, 1)), 0), _MOST_PER_LINK)
    moved = neighbour(placement, problem, draw)
    return None if moved is None else (moved, per_link)
