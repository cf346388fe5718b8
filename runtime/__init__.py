"""The live pipeline runtime: workers, weight policies, measuring, training, and the oracle."""

from drlpp.runtime.baselines import baseline_contenders
from drlpp.runtime.comparison import Comparison, Contender, compare
from drlpp.runtime.deployment import Deployment
from drlpp.runtime.export import export
from drlpp.runtime.kept_profile import kept_profile
from drlpp.runtime.launch import join_launch, restarted, usual_workers
from drlpp.runtime.minibatches import Minibatches
from drlpp.runtime.random_delays import RandomDelays
from drlpp.runtime.reference import ReferenceExecutor, ReferenceResult, run_reference
from drlpp.runtime.run_commands import RunOptions
from drlpp.runtime.session import ClusterSession, TimeSpent
from drlpp.runtime.trainer import EpochReport, Observer
from drlpp.runtime.training import TrainingResult, train

__all__ = [
    "ClusterSession",
    "Deployment",
    "TimeSpent",
    "join_launch",
    "usual_workers",
    "restarted",
    "Comparison",
    "Contender",
    "compare",
    "baseline_contenders",
    "export",
    "kept_profile",
    "EpochReport",
    "Observer",
    "TrainingResult",
    "train",
    "Minibatches",
    "RunOptions",
    "ReferenceExecutor",
    "ReferenceResult",
    "RandomDelays",
    "run_reference",
]
