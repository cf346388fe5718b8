"""Gymnasium environments whose reward is the running time of a placement.

Importing this package registers them: ``PlacementEnv`` as ``drlpp/PlacementLive-v0`` and
``drlpp/PlacementSim-v0``, ``StepwisePlacementEnv`` as ``drlpp/PlacementStepwiseLive-v0`` and
``drlpp/PlacementStepwiseSim-v0``.
"""

import gymnasium as _gym

from drlpp.envs.codec import ActionCodec
from drlpp.envs.cost_prior import CostPrior
from drlpp.envs.measuring.measurer import ContractedMeasurer, Measurer
from drlpp.envs.measuring.memory import MeasurementMemory, MemorySummary
from drlpp.envs.measuring_env import MeasuringEnv
from drlpp.envs.placement_env import PlacementEnv
from drlpp.envs.stepwise_env import StepwisePlacementEnv

__all__ = [
    "ActionCodec",
    "Measurer",
    "ContractedMeasurer",
    "CostPrior",
    "MeasurementMemory",
    "MemorySummary",
    "PlacementEnv",
    "StepwisePlacementEnv",
    "MeasuringEnv",
]

for _name, _stepwise in (("Placement", False), ("PlacementStepwise", True)):
    _gym.register(
        id=f"drlpp/{_name}Live-v0",
        entry_point="drlpp.envs.making:make_live",
        nondeterministic=True,
        kwargs={"stepwise": _stepwise},
    )
    _gym.register(
        id=f"drlpp/{_name}Sim-v0",
        entry_point="drlpp.envs.making:make_sim",
        kwargs={"stepwise": _stepwise},
    )
