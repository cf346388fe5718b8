"""What a transfer policy proposes for a problem of planning."""

from __future__ import annotations

from pathlib import Path

from drlpp.agents.pretraining.problems import placement_of
from drlpp.agents.transfer.context import PlacementContext
from drlpp.agents.transfer.context_batch import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.weights import load_weights
from drlpp.placement.candidate import Candidate
from drlpp.planners import PlanningProblem
from drlpp.schedule.method import Method

SAMPLES = 16
"""How many it draws for a search."""

PROPOSED = 4
"""How many of the best of them a search begins with, as the guided agent's."""


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
