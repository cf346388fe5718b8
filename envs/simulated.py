"""Entry point of the environments over a simulated cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drlpp.costs.cost_table import read_profile
from drlpp.costs.profile import Profile
from drlpp.envs.cost_prior import CostPrior
from drlpp.envs.measuring.memory import MeasurementMemory
from drlpp.envs.measuring_env import INVALID_REWARD, MeasuringEnv, check_render_mode
from drlpp.envs.placement_env import PlacementEnv
from drlpp.envs.stepwise_env import StepwisePlacementEnv
from drlpp.io.documents import read_document
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Cluster


def make_sim(
    profile: Profile | str | Path,
    cluster: Cluster | str | Path,
    speeds: Sequence[float] | None = None,
    method: Method = DEFAULT_METHOD,
    minibatches: int = 30,
    invalid_reward: float = INVALID_REWARD,
    path: str | Path | None = None,
    stepwise: bool = False,
    declared: CostPrior | None = None,
    render_mode: str | None = None,
) -> MeasuringEnv:
    """Build an environment that plays the schedules of placements in the simulator.

    Args:
        profile: a model and its costs on an accelerator of speed 1, or the path of a profile.
        cluster: the accelerators and their links, or the path of a ``cluster.yaml``.
        speeds: relative speed of every accelerator, in place of the cluster's.
        method: the schedule, and the weight policy on it.
        minibatches: over how many minibatches a placement is measured.
        invalid_reward: the reward of a placement that cannot run or does not fit.
        path: the file in which outcomes are remembered.
        stepwise: build placements decision by decision, with action masks.
        declared: what agents know; the profile and the cluster, without ``speeds``, if left out.
        render_mode: None; there is no other.

    Raises:
        InvalidInput: an argument is none of these.
    """
    check_render_mode(render_mode)
    if isinstance(profile, str | Path):
        profile = read_profile(Path(profile))
    if isinstance(cluster, str | Path):
        cluster = read_document(cluster, Cluster)
    measurer = SimulatedCluster(profile, cluster, speeds, method)
    memory = MeasurementMemory(measurer, minibatches, path)
    environment = StepwisePlacementEnv if stepwise else PlacementEnv
    return environment(
        memory, invalid_reward, declared=declared or CostPrior.of(profile, cluster, method)
    )
