"""Evolution of placements by the search's moves: something to hold other searches against."""

from __future__ import annotations

import random
from collections.abc import Callable

from drlpp.placement.placement import Placement
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search.moves import PlacementState, neighbour, random_placement

_PARENTS = 8
_STALE = 300
"""It ends when so many children in a row are known already."""


def evolve(
    problem: PlanningProblem, evaluations: int, evaluate: Callable[[Placement], float] | None = None
) -> dict[Placement, float]:
    """Return distinct placements with what they take, by the problem's rule by default.

    The best eight are mutated again and again, until there are as many as ``evaluations``.
    """
    draw = random.Random(problem.seed)
    evaluate = evaluate or (lambda placement: problem.predict(placement).seconds_per_minibatch)
    found: dict[Placement, float] = {}
    stale = 0
    while len(found) < evaluations and stale < _STALE:
        if len(found) < _PARENTS and stale < _PARENTS:
            placement = random_placement(problem, draw)
        else:
            parent = draw.choice(sorted(found, key=found.__getitem__)[:_PARENTS])
            state = PlacementState.of(parent, problem)
            while (state := neighbour(state, problem, draw) or state) and draw.random() < 0.4:
                pass
            placement = state.placement()
        stale += 1
        if placement not in found:
            found[placement] = evaluate(placement)
            stale = 0
    return found
