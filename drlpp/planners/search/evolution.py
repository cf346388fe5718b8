"""Evolution of placements: (μ + λ) with the moves of local search as mutations."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

from drlpp.placement.placement import Placement
from drlpp.planners.problem.objective import AnalyticObjective, Objective
from drlpp.planners.problem.problem import PlanningProblem, Solution
from drlpp.planners.search.evaluations import Recorder, SearchRun, identity
from drlpp.planners.search.moves import PlacementState, neighbour
from drlpp.planners.search.random_search import random_placement

PARENTS = 8
CHILDREN = 8
_FURTHER_MOVE = 0.4
"""The probability that a child differs by one more move."""


def evolution(
    problem: PlanningProblem, evaluations: int = 2000, evaluate: Objective | None = None
) -> Solution:
    """Return the best placement that :func:`evolve` comes by; the arguments are the same."""
    run = evolve(problem, evaluations, evaluate)
    return run.solution("evolution", by_rule=evaluate is None)


def evolve(
    problem: PlanningProblem,
    evaluations: int = 2000,
    evaluate: Objective | None = None,
    start: Sequence[Placement] = (),
) -> SearchRun:
    """Keep the best :data:`PARENTS` of all, and mutate them into :data:`CHILDREN` again and again.

    Args:
        problem: whose seed is used.
        evaluations: of distinct placements; fewer if the search comes by no others.
        evaluate: the objective, the problem's rule with its memory limits if none is given.
        start: the first parents; random placements if none are given.

    Raises:
        InvalidInput: for less than one evaluation.
    """
    draw = random.Random(problem.seed)
    record = Recorder(evaluate or AnalyticObjective(problem), evaluations)
    first = list(start) or [random_placement(problem, draw) for _ in range(PARENTS)]
    parents: dict[Hashable, tuple[float, Placement]] = {}
    for placement in first:
        if not record.goes_on:
            return record.run
        parents[identity(placement)] = record(placement), placement
    while record.goes_on:
        states = [PlacementState.of(placement, problem) for _, placement in parents.values()]
        for _ in range(CHILDREN):
            child = mutated(draw.choice(states), problem, draw).placement()
            if record.goes_on:
                parents.setdefault(identity(child), (record(child), child))
        parents = dict(sorted(parents.items(), key=lambda item: item[1][0])[:PARENTS])
    return record.run


def mutated(state: PlacementState, problem: PlanningProblem, draw: random.Random) -> PlacementState:
    """Return a state some moves away, mostly one; the same if no move applies."""
    state = neighbour(state, problem, draw) or state
    while draw.random() < _FURTHER_MOVE:
        state = neighbour(state, problem, draw) or state
    return state
