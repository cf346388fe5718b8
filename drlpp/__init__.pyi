# What users import from here, each when it is first used.
from .capturing.capture import capture as capture
from .errors import DRLPPError as DRLPPError
from .models.huggingface import from_huggingface as from_huggingface
from .models.task import Task as Task
from .placement.candidate import Candidate as Candidate
from .placement.measurement import Measurement as Measurement
from .placement.placement import Placement as Placement
from .planners.plan import plan as plan
from .runtime.session.session import ClusterSession as ClusterSession
from .runtime.training.training import PipelineTrainer as PipelineTrainer
from .runtime.training.training import TrainingResult as TrainingResult
from .runtime.training.training_plan import TrainerCallbacks as TrainerCallbacks
from .schedule.method import Method as Method
from .simulator.simulation import simulate as simulate
from .specs.cluster import Cluster as Cluster
