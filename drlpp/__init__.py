"""DRL-PP: the fastest way to train a PyTorch model in a pipeline, learned by running it.

What a user of the library needs stands here; names are imported when they are first used, so
that ``import drlpp`` costs nothing::

    from drlpp import ClusterSession, PipelineTrainer, Placement, read_placement
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drlpp.capturing import CapturedModel, capture
    from drlpp.cluster import Cluster, Link, local_cluster
    from drlpp.errors import DRLPPError, InvalidInput, RunFailure
    from drlpp.files import read_document, write_document
    from drlpp.graph import OpGraph
    from drlpp.learning_rate import LearningRateSchedule
    from drlpp.measurement import FailedMeasurement, Measurement
    from drlpp.optimizer_spec import OptimizerSpec
    from drlpp.placement import Placement
    from drlpp.placement_file import PlacementFile, read_placement
    from drlpp.planners import PLANNERS, PlanningProblem, plan
    from drlpp.profile import Profile
    from drlpp.runtime import (
        ClusterSession,
        EarlyStopping,
        EpochReport,
        Observer,
        PipelineTrainer,
        TrainingResult,
    )
    from drlpp.schedule import build_schedule
    from drlpp.simulator import SimulatedCluster, Simulation, simulate
    from drlpp.task import ModelReference, Task
    from drlpp.training_options import Method, choose_method
    from drlpp.workload import Workload

_HOME = {
    "Task": "drlpp.task",
    "ModelReference": "drlpp.task",
    "capture": "drlpp.capturing",
    "CapturedModel": "drlpp.capturing",
    "OpGraph": "drlpp.graph",
    "Placement": "drlpp.placement",
    "PlacementFile": "drlpp.placement_file",
    "read_placement": "drlpp.placement_file",
    "build_schedule": "drlpp.schedule",
    "Method": "drlpp.training_options",
    "choose_method": "drlpp.training_options",
    "OptimizerSpec": "drlpp.optimizer_spec",
    "LearningRateSchedule": "drlpp.learning_rate",
    "Cluster": "drlpp.cluster",
    "Link": "drlpp.cluster",
    "local_cluster": "drlpp.cluster",
    "Profile": "drlpp.profile",
    "read_document": "drlpp.files",
    "write_document": "drlpp.files",
    "Workload": "drlpp.workload",
    "PLANNERS": "drlpp.planners",
    "PlanningProblem": "drlpp.planners",
    "plan": "drlpp.planners",
    "simulate": "drlpp.simulator",
    "Simulation": "drlpp.simulator",
    "SimulatedCluster": "drlpp.simulator",
    "ClusterSession": "drlpp.runtime",
    "Measurement": "drlpp.measurement",
    "FailedMeasurement": "drlpp.measurement",
    "PipelineTrainer": "drlpp.runtime",
    "EarlyStopping": "drlpp.runtime",
    "Observer": "drlpp.runtime",
    "EpochReport": "drlpp.runtime",
    "TrainingResult": "drlpp.runtime",
    "DRLPPError": "drlpp.errors",
    "InvalidInput": "drlpp.errors",
    "RunFailure": "drlpp.errors",
}

__all__ = [
    "Task",
    "ModelReference",
    "capture",
    "CapturedModel",
    "OpGraph",
    "Placement",
    "PlacementFile",
    "read_placement",
    "build_schedule",
    "Method",
    "choose_method",
    "OptimizerSpec",
    "LearningRateSchedule",
    "Cluster",
    "Link",
    "local_cluster",
    "Profile",
    "read_document",
    "write_document",
    "Workload",
    "PLANNERS",
    "PlanningProblem",
    "plan",
    "simulate",
    "Simulation",
    "SimulatedCluster",
    "ClusterSession",
    "Measurement",
    "FailedMeasurement",
    "PipelineTrainer",
    "EarlyStopping",
    "Observer",
    "EpochReport",
    "TrainingResult",
    "DRLPPError",
    "InvalidInput",
    "RunFailure",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'drlpp' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
