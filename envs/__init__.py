"""Gymnasium environments whose reward is the running time of a placement.

Importing this package registers ``PlacementEnv`` over workers as ``drlpp/PlacementLive-v0``, and
over a simulated cluster as ``drlpp/PlacementSim-v0``; and ``PlacementImprove``, whose steps
change a placement a little, as ``drlpp/PlacementImprove-v0``.
"""

import gymnasium as _gym

from drlpp.envs.cost_prior import CostPrior
from drlpp.envs.measuring.measurer import ContractedMeasurer, Measurer
from drlpp.envs.measuring.memory import MeasurementMemory, MemorySummary
from drlpp.envs.placement_env import PlacementEnv
from drlpp.envs.placement_improve import PlacementImprove

__all__ = [
    "Measurer",
    "ContractedMeasurer",
    "CostPrior",
    "MeasurementMemory",
    "MemorySummary",
    "PlacementEnv",
    "PlacementImprove",
]

_MAKING = "drlpp.envs.making"
_gym.register("drlpp/PlacementLive-v0", f"{_MAKING}:make_live", nondeterministic=True)
_gym.register("drlpp/PlacementSim-v0", f"{_MAKING}:make_sim")
_gym.register("drlpp/PlacementImprove-v0", "drlpp.envs.placement_improve:PlacementImprove")
