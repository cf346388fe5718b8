"""The best candidate that a search in the simulator finds, from what all quick planners propose."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.planners.best_simulated import Choice, Proposal, best_simulated
from drlpp.planners.candidates import Found, Judge, Limits, Space, search
from drlpp.planners.plan import Plan
from drlpp.planners.problem.problem import PlanningProblem, Solution
from drlpp.schedule.method import Method
from drlpp.simulator import depth_of

NAME = "search"
"""As the command line names it."""


@dataclass(frozen=True)
class Searched:
    """What a search found, and what it began with.

    Attributes:
        choice: its best is what was found; then the planners' proposals, the fastest first.
        found: the search's own account, with the best candidate, whose method may be another.
    """

    choice: Choice
    found: Found


def best_searched(problem: PlanningProblem, space: Space, limits: Limits | None = None) -> Searched:
    """Search for the best candidate of a space until nothing better is found.

    Args:
        problem: its workload is that of the space's method; its seed is used.
        space: the methods that may be chosen.
        limits: on how long it lasts.

    Raises:
        NothingFits: nothing that was looked at fits into memory, and can be run.
    """
    begin = time.perf_counter()
    proposals: tuple[Proposal, ...] = ()
    lower_bound = 0.0
    # A search may find what fits, or can be run, with another method of the space.
    with suppress(InvalidInput):
        planned = planned_in(space, problem)
        proposals, lower_bound = planned.proposals, planned.lower_bound
    judge = Judge(problem, space)
    found = search(judge, starts_of(space, proposals), limits, problem.seed)
    method = found.candidate.method
    solved, placement = judge.problem_of(method), found.candidate.placement
    played = depth_of(solved.workload, solved.cluster, placement, method, solved.memory)
    note = (
        f"search with {method}: {found.judged:,} candidates, {found.played:,} of them simulated, "
        + ("until nothing better was found" if found.stagnated else "until its limit")
    )
    plan = Plan(NAME, solved, Solution(placement, note=note), time.perf_counter() - begin)
    best = Proposal(plan, played, (played,))
    # The rule of another method is another bound.
    bound = lower_bound if _without_depth(method) == _without_depth(space.method) else 0.0
    return Searched(Choice(best, proposals, bound), found)


def planned_in(space: Space, problem: PlanningProblem) -> Choice:
    """Return what quick planners propose, at the depth that suits each where the space varies it.

    Raises:
        InvalidInput: nothing of it fits into memory, and can be run.
    """
    return best_simulated(
        problem, space.method, deepen=space.deepens, most_staleness=space.most_staleness
    )


def _without_depth(method: Method) -> Method:
    """Return the same with the minibatches in flight that NOAM has: the rule knows no depth."""
    return method.model_copy(update={"in_flight_per_link": 0})


def starts_of(space: Space, proposals: tuple[Proposal, ...]) -> list[Candidate]:
    """Return proposals with the space's own method, and at their depths where it has them."""
    found = [
        Candidate(proposal.plan.placement, method)
        for proposal in proposals
        for method in (
            space.method.model_copy(update={"in_flight_per_link": proposal.depth.per_link}),
            space.method,
        )
        if method in space.methods
    ]
    return list(dict.fromkeys(found))
