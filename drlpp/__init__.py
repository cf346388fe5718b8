"""DRL-PP: the fastest way to train a PyTorch model in a pipeline, learned by running it.

What a user of the library needs stands here; names are imported when they are first used, so
that ``import drlpp`` costs nothing::

    from drlpp import ClusterSession, PipelineTrainer, Placement, read_placement
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel, capture
    from drlpp.capturing.graph import OpGraph
    from drlpp.costs.profile import Profile
    from drlpp.costs.workload import Workload
    from drlpp.errors import DRLPPError, InvalidInput, RunFailure
    from drlpp.io.documents import read_document, write_document
    from drlpp.models.task import ModelReference, Task
    from drlpp.placement.measurement import FailedMeasurement, Measurement
    from drlpp.placement.placement import Placement
    from drlpp.placement.placement_file import PlacementFile, read_placement
    from drlpp.planners import PLANNERS, PlanningProblem, plan
    from drlpp.runtime import (
        ClusterSession,
        EarlyStopping,
        EpochReport,
        Observer,
        PipelineTrainer,
        TrainingResult,
    )
    from drlpp.schedule.method import Method, choose_method
    from drlpp.schedule.schedule import build_schedule
    from drlpp.simulator import SimulatedCluster, Simulation, simulate
    from drlpp.specs.cluster import Cluster, Link, local_cluster
    from drlpp.specs.learning_rate import LearningRateSchedule
    from drlpp.specs.optimizer_spec import OptimizerSpec

_HOME = {
    "Task": "drlpp.models.task",
    "ModelReference": "drlpp.models.task",
    "capture": "drlpp.capturing.capture",
    "CapturedModel": "drlpp.capturing.capture",
    "OpGraph": "drlpp.capturing.graph",
    "Placement": "drlpp.placement.placement",
    "PlacementFile": "drlpp.placement.placement_file",
    "read_placement": "drlpp.placement.placement_file",
    "build_schedule": "drlpp.schedule.schedule",
    "Method": "drlpp.schedule.method",
    "choose_method": "drlpp.schedule.method",
    "OptimizerSpec": "drlpp.specs.optimizer_spec",
    "LearningRateSchedule": "drlpp.specs.learning_rate",
    "Cluster": "drlpp.specs.cluster",
    "Link": "drlpp.specs.cluster",
    "local_cluster": "drlpp.specs.cluster",
    "Profile": "drlpp.costs.profile",
    "read_document": "drlpp.io.documents",
    "write_document": "drlpp.io.documents",
    "Workload": "drlpp.costs.workload",
    "PLANNERS": "drlpp.planners",
    "PlanningProblem": "drlpp.planners",
    "plan": "drlpp.planners",
    "simulate": "drlpp.simulator",
    "Simulation": "drlpp.simulator",
    "SimulatedCluster": "drlpp.simulator",
    "ClusterSession": "drlpp.runtime",
    "Measurement": "drlpp.placement.measurement",
    "FailedMeasurement": "drlpp.placement.measurement",
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
