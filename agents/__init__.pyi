# What users import from here, each when it is first used.
from .callbacks import AtomicCheckpointCallback as AtomicCheckpointCallback
from .callbacks import MeasurementBudgetCallback as MeasurementBudgetCallback
from .guided import GuidedSearch as GuidedSearch
from .guided import Searcher as Searcher
from .hyperparameters import AGENTS as AGENTS
from .hyperparameters import AgentHyperparameters as AgentHyperparameters
from .hyperparameters import GuidedHyperparameters as GuidedHyperparameters
from .hyperparameters import Hyperparameters as Hyperparameters
from .hyperparameters import OwnAgent as OwnAgent
from .hyperparameters import hyperparameters_of as hyperparameters_of
from .learning import learn_placement as learn_placement
from .paper.algorithm import DRLPP as DRLPP
from .paper.policy import PlacementPolicy as PlacementPolicy
