"""What is proposed in the policy's place without one."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from drlpp.placement.candidate import Candidate
from drlpp.planners import PlanningProblem
from drlpp.planners.search.moves import PlacementState, mutated


def bred(
    parents: Sequence[Candidate], problem: PlanningProblem, count: int, draw: Random
) -> list[Candidate]:
    """Return as many children of the best that are known."""
    found = []
    for _ in range(count):
        parent = draw.choice(parents)
        state = PlacementState.of(parent.placement, problem)
        found.append(Candidate(mutated(state, problem, draw).placement(), parent.method))
    return found
