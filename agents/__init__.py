"""drl-pp's agent: graph encoder, recurrent partitioner and pipeline scheduler, trained with PPO."""

from drlpp.agents.algorithm import DRLPP
from drlpp.agents.callbacks import (
    AtomicCheckpointCallback,
    BestPlacementCallback,
    MeasurementBudgetCallback,
)
from drlpp.agents.context import PlacementContext
from drlpp.agents.encoder import GraphConvolution, GraphEncoder
from drlpp.agents.guided import GuidedDRLPP
from drlpp.agents.hyperparameters import (
    AGENTS,
    AgentHyperparameters,
    GuidedHyperparameters,
    Hyperparameters,
    hyperparameters_of,
)
from drlpp.agents.learning import learn_placement
from drlpp.agents.partitioner import RecurrentPartitioner
from drlpp.agents.policy import PlacementPolicy
from drlpp.agents.retrace import retrace
from drlpp.agents.scheduler import PipelineScheduler
from drlpp.agents.transfer_policy import TransferPolicy
from drlpp.agents.weights import PRETRAINED

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
    "BestPlacementCallback",
    "AtomicCheckpointCallback",
    "PlacementPolicy",
    "TransferPolicy",
    "PlacementContext",
    "PRETRAINED",
    "retrace",
    "GraphEncoder",
    "GraphConvolution",
    "RecurrentPartitioner",
    "PipelineScheduler",
]
