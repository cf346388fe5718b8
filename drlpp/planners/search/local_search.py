"""Local search by simulated annealing over placements, without or with a measured objective.

A step changes a placement a little (:mod:`drlpp.planners.search.moves`) and evaluates what comes
out; a worse one is taken with probability exp(−(ln new − ln old) / t) (Kirkpatrick et al. 1983),
where t falls from a tenth to a thousandth: at first what is 10 % slower is often taken, at last
what is 0.1 % slower.
"""

from __future__ import annotations

import math
import random

from drlpp.planners.baselines.gpipe import gpipe
from drlpp.planners.problem.objective import AnalyticObjective, Objective
from drlpp.planners.problem.problem import PlanningProblem, Solution
from drlpp.planners.search.evaluations import Recorder, SearchRun
from drlpp.planners.search.moves import PlacementState, neighbour

_FIRST_TEMPERATURE = 0.1
_LAST_TEMPERATURE = 0.001


def local_search(
    problem: PlanningProblem, evaluations: int = 2000, evaluate: Objective | None = None
) -> Solution:
    """Return the best placement that :func:`anneal` comes by; the arguments are the same."""
    run = anneal(problem, evaluations, evaluate)
    return run.solution("simulated annealing", by_rule=evaluate is None)


def anneal(
    problem: PlanningProblem,
    evaluations: int = 2000,
    evaluate: Objective | None = None,
) -> SearchRun:
    """Anneal from GPipe's even split.

    Args:
        problem: whose seed is used.
        evaluations: of distinct placements; fewer if the search comes by no others.
        evaluate: the objective, the problem's rule with its memory limits if none is given. What
            it calls infinite is never taken.

    Raises:
        InvalidInput: for less than one evaluation.
    """
    draw = random.Random(problem.seed)
    record = Recorder(evaluate or AnalyticObjective(problem), evaluations)
    state = PlacementState.of(gpipe(problem).placement, problem)
    value = record(state.placement())
    while record.goes_on:
        candidate = neighbour(state, problem, draw)
        if candidate is None:
            break
        found = record(candidate.placement())
        temperature = _FIRST_TEMPERATURE * (_LAST_TEMPERATURE / _FIRST_TEMPERATURE) ** record.used
        if _accepts(value, found, temperature, draw):
            state, value = candidate, found
    return record.run


def _accepts(old: float, new: float, temperature: float, draw: random.Random) -> bool:
    if new <= old:
        return True
    if math.isinf(new) or old <= 0:
        return False
    return draw.random() < math.exp(-math.log(new / old) / temperature)
