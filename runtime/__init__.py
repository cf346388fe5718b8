"""The live pipeline runtime: workers, weight policies, measuring, training, and the oracle."""

from drlpp.runtime.comparison import Comparison, compare
from drlpp.runtime.contenders import PLAIN, RIVALS, Contender, Heat
from drlpp.runtime.deployment import Deployment
from drlpp.runtime.early_stopping import EarlyStopping
from drlpp.runtime.evaluation_commands import Evaluation
from drlpp.runtime.export import export
from drlpp.runtime.kept_profile import kept_profile
from drlpp.runtime.launch import join_launch, leave_launch, restarted, usual_workers
from drlpp.runtime.minibatches import Minibatches
from drlpp.runtime.plain import PlainPyTorch
from drlpp.runtime.random_delays import RandomDelays
from drlpp.runtime.reference import ReferenceExecutor, ReferenceResult, run_reference
from drlpp.runtime.rivals import rival_heats
from drlpp.runtime.run_commands import RunOptions
from drlpp.runtime.session import ClusterSession
from drlpp.runtime.time_limits import TimeLimits
from drlpp.runtime.training import PipelineTrainer, TrainingResult
from drlpp.runtime.training_reports import EpochReport, Observer, ProgressReport
from drlpp.runtime.worker_group import TimeSpent

__all__ = [
    "ClusterSession",
    "Deployment",
    "Evaluation",
    "TimeSpent",
    "TimeLimits",
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
