"""Entry point of the environments over a simulated cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drlpp.cluster import Cluster
from drlpp.envs.measuring_env import INVALID_REWARD, MeasuringEnv
from drlpp.envs.memory import MeasurementMemory
from drlpp.envs.placement_env import PlacementEnv
from drlpp.envs.stepwise_env import StepwisePlacementEnv
from drlpp.graph import OpGraph
from drlpp.profile import Profile
from drlpp.simulator import SimulatedCluster


def make_sim(
    graph: OpGraph,
    profile: Profile,
    cluster: Cluster,
    speeds: Sequence[float] | None = None,
    minibatches: int = 30,
    invalid_reward: float = INVALID_REWARD,
    path: str | Path | None = None,
    stepwise: bool = False,
) -> MeasuringEnv:
    """Build an environment that predicts placements with the simulator.

    Args:
        graph: the model.
        profile: its costs on an accelerator of speed 1.
        cluster: the accelerators and their links.
        speeds: relative speed of every accelerator; 1 each if not given.
        minibatches: what a measurement of the same length would run.
        invalid_reward: the reward of a placement that cannot run.
        path: the file in which predictions are remembered.
        stepwise: build placements decision by decision, with action masks.
    """
    measurer = SimulatedCluster(graph, profile, cluster, speeds)
    memory = MeasurementMemory(measurer, minibatches, path)
    environment = StepwisePlacementEnv if stepwise else PlacementEnv
    return environment(memory, invalid_reward)
