"""What a policy proposes for a problem, and what is proposed in its place without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from drlpp.agents.pretraining.problems import placement_of
from drlpp.agents.transfer.context import PlacementContext
from drlpp.agents.transfer.context_batch import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.weights import load_weights
from drlpp.placement.candidate import Candidate
from drlpp.planners import PlanningProblem
from drlpp.planners.search.evolution import mutated
from drlpp.planners.search.moves import PlacementState
from drlpp.schedule.method import Method

SAMPLES = 16


def network_of(weights: Path) -> TransferNetwork:
    """Return the policy's network with these weights."""
    network = TransferNetwork()
    load_weights(network, weights)
    return network


def sampled(network: TransferNetwork, problem: PlanningProblem, count: int) -> list[Candidate]:
    """Return the policy's likeliest placement, and others that it draws, ``count`` in all."""
    batch = ContextBatch.of([PlacementContext.of_workload(problem.workload, problem.cluster)])
    found = network.sample(batch, [0], deterministic=True)
    found += network.sample(batch, [0] * (count - 1))
    return [Candidate(placement_of(trajectory), Method()) for trajectory in found]


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
