"""The live pipeline runtime: workers, weight policies, measuring, training, and the oracle."""

from drlpp.comparison.compare import Comparison, compare
from drlpp.comparison.contenders import PLAIN, RIVALS, Contender, Heat
from drlpp.comparison.placement_export import export
from drlpp.comparison.plain import PlainPyTorch
from drlpp.comparison.rivals import rival_heats
from drlpp.runtime.deploying.deployment import Deployment
from drlpp.runtime.deploying.evaluation_commands import Evaluation
from drlpp.runtime.deploying.run_commands import RunOptions
from drlpp.runtime.hosts.launch import join_launch, leave_launch, restarted, usual_workers
from drlpp.runtime.reference.random_delays import RandomDelays
from drlpp.runtime.reference.reference import ReferenceExecutor, ReferenceResult, run_reference
from drlpp.runtime.session.kept_profile import kept_profile
from drlpp.runtime.session.session import ClusterSession, TimeSpent
from drlpp.runtime.stage.minibatches import Minibatches
from drlpp.runtime.training.early_stopping import EarlyStopping
from drlpp.runtime.training.training import PipelineTrainer, TrainingResult
from drlpp.runtime.training.training_reports import EpochReport, Observer, ProgressReport

__all__ = [
    "ClusterSession",
    "Deployment",
    "Evaluation",
    "TimeSpent",
    "join_launch",
    "leave_launch",
    "usual_workers",
    "restarted",
    "Comparison",
    "Contender",
    "Heat",
    "PLAIN",
    "RIVALS",
    "compare",
    "rival_heats",
    "PlainPyTorch",
    "export",
    "kept_profile",
    "PipelineTrainer",
    "TrainingResult",
    "EarlyStopping",
    "EpochReport",
    "ProgressReport",
    "Observer",
    "Minibatches",
    "RunOptions",
    "ReferenceExecutor",
    "ReferenceResult",
    "RandomDelays",
    "run_reference",
]
