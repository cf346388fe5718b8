"""Entry points of the environments: over live workers, and over a simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drlpp.costs.cost_table import read_profile
from drlpp.costs.profile import Profile
from drlpp.envs.cost_prior import CostPrior
from drlpp.envs.measuring.measurer import Measurer
from drlpp.envs.measuring.memory import MeasurementMemory
from drlpp.envs.placement_env import INVALID_REWARD, PlacementEnv
from drlpp.io.documents import read_document
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Cluster


def make_live(
    measurer: Measurer | None = None,
    model: str = "alexnet",
    workers: int = 4,
    minibatches: int = 30,
    repetitions: int = 1,
    invalid_reward: float = INVALID_REWARD,
    path: str | Path | None = None,
    declared: CostPrior | None = None,
    render_mode: None = None,
    **session_options: Any,
) -> PlacementEnv:
    """Build an environment that measures placements on live workers.

    Args:
        measurer: a session that is open already; it stays open when the environment closes.
            Without one a session is opened, and closed with the environment.
        model: the model of that new session, by its name in the zoo or ``package.module:factory``.
        workers: how many workers the new session starts.
        minibatches: over how many minibatches a placement is measured.
        repetitions: in how many runs; the reward is that of the median.
        invalid_reward: the reward of a placement that cannot run or that failed.
        path: the file in which measurements are remembered.
        declared: what agents know, such as a profile that was measured; costs are guessed from
            sizes if left out.
        render_mode: None, as there is nothing to draw.
        session_options: further options of the new ``ClusterSession``, such as ``method``.

    Raises:
        TypeError: an argument is none of these.
    """
    _refuse_to_render(render_mode)
    owns_measurer = measurer is None
    if measurer is not None and session_options:
        unexpected = ", ".join(session_options)
        raise TypeError(f"a measurer is given, and no session is opened that takes {unexpected}")
    if measurer is None:
        # Only here, since it starts torch's distributed machinery.
        from drlpp.runtime import ClusterSession

        measurer = ClusterSession(model, workers, **session_options)
    memory = MeasurementMemory(measurer, minibatches, path, repetitions)
    return PlacementEnv(memory, invalid_reward, owns_measurer, declared)


def make_sim(
    profile: Profile | str | Path,
    cluster: Cluster | str | Path,
    method: Method = DEFAULT_METHOD,
    minibatches: int = 30,
    invalid_reward: float = INVALID_REWARD,
    path: str | Path | None = None,
    declared: CostPrior | None = None,
    render_mode: None = None,
) -> PlacementEnv:
    """Build an environment that plays the schedules of placements in the simulator.

    Args:
        profile: a model and its costs on an accelerator of speed 1, or the path of a profile.
        cluster: the accelerators and their links, or the path of a ``cluster.yaml``.
        method: the schedule, and the weight policy on it.
        minibatches: over how many minibatches a placement is measured.
        invalid_reward: the reward of a placement that cannot run or does not fit.
        path: the file in which outcomes are remembered.
        declared: what agents know; the profile and the cluster if left out.
        render_mode: None, as there is nothing to draw.

    Raises:
        TypeError: an argument is none of these.
    """
    _refuse_to_render(render_mode)
    if isinstance(profile, str | Path):
        profile = read_profile(Path(profile))
    if isinstance(cluster, str | Path):
        cluster = read_document(cluster, Cluster)
    memory = MeasurementMemory(SimulatedCluster(profile, cluster, method), minibatches, path)
    declared = declared or CostPrior.of(profile, cluster, method)
    return PlacementEnv(memory, invalid_reward, declared=declared)


def _refuse_to_render(mode: object) -> None:
    """Raise what stable-baselines3 expects of an environment that it cannot ask for pictures."""
    if mode is not None:
        raise TypeError(f"render_mode={mode!r}: a placement cannot be drawn; leave it out")
