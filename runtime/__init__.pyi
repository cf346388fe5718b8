# What users import from here, each when it is first used.
from .deploying.deployment import Deployment as Deployment
from .deploying.deployment import Evaluation as Evaluation
from .deploying.deployment import RunOptions as RunOptions
from .hosts.session_hosts import default_num_workers as default_num_workers
from .ipc.time_limits import TimeLimits as TimeLimits
from .reference.reference import ReferenceExecutor as ReferenceExecutor
from .reference.reference import run_reference as run_reference
from .session.profiling import load_or_measure_profile as load_or_measure_profile
from .session.session import ClusterSession as ClusterSession
from .stage.minibatches import Minibatches as Minibatches
from .training.checkpoints import export_weights as export_weights
from .training.training import PipelineTrainer as PipelineTrainer
from .training.training import TrainingResult as TrainingResult
from .training.training_plan import EarlyStopping as EarlyStopping
from .training.training_plan import EpochReport as EpochReport
from .training.training_plan import ProgressReport as ProgressReport
from .training.training_plan import TrainerCallbacks as TrainerCallbacks
