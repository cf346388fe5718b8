"""Agents that place models: drl-pp's, trained with PPO; one policy for all models; guided."""

from drlpp.agents.guided.guided import GuidedDRLPP
from drlpp.agents.hyperparameters import (
    AGENTS,
    AgentHyperparameters,
    GuidedHyperparameters,
    Hyperparameters,
    hyperparameters_of,
)
from drlpp.agents.learning import (
    AtomicCheckpointCallback,
    MeasurementBudgetCallback,
    learn_placement,
)
from drlpp.agents.paper.algorithm import DRLPP
from drlpp.agents.paper.policy import PlacementPolicy
from drlpp.agents.transfer.context import PlacementContext
from drlpp.agents.transfer.transfer_policy import TransferPolicy
from drlpp.agents.transfer.weights import PRETRAINED

__all__ = [
    "DRLPP",
    "GuidedDRLPP",
    "Hyperparameters",
    "GuidedHyperparameters",
    "AgentHyperparameters",
    "AGENTS",
    "hyperparameters_of",
    "learn_placement",
    "MeasurementBudgetCallback",
    "AtomicCheckpointCallback",
    "PlacementPolicy",
    "TransferPolicy",
    "PlacementContext",
    "PRETRAINED",
]
