"""Entry point of the environments over live workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drlpp.envs.cost_prior import CostPrior
from drlpp.envs.measuring.measurer import Measurer
from drlpp.envs.measuring.memory import MeasurementMemory
from drlpp.envs.measuring_env import INVALID_REWARD, MeasuringEnv, check_render_mode
from drlpp.envs.placement_env import PlacementEnv
from drlpp.envs.stepwise_env import StepwisePlacementEnv


def make_live(
    measurer: Measurer | None = None,
    model: str = "alexnet",
    workers: int = 4,
    minibatches: int = 30,
    repetitions: int = 1,
    invalid_reward: float = INVALID_REWARD,
    path: str | Path | None = None,
    stepwise: bool = False,
    declared: CostPrior | None = None,
    render_mode: str | None = None,
    **session_options: Any,
) -> MeasuringEnv:
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
        stepwise: build placements decision by decision, with action masks.
        declared: what agents know, such as a profile that was measured; costs are guessed from
            sizes if left out.
        render_mode: None; there is no other.
        session_options: further options of the new ``ClusterSession``, such as ``method``.

    Raises:
        InvalidInput: an argument is none of these.
    """
    check_render_mode(render_mode)
    owns_measurer = measurer is None
    if measurer is None:
        # Only here, since it starts torch's distributed machinery.
        from drlpp.runtime import ClusterSession

        measurer = ClusterSession(model, workers, **session_options)
    memory = MeasurementMemory(measurer, minibatches, path, repetitions)
    environment = StepwisePlacementEnv if stepwise else PlacementEnv
    return environment(memory, invalid_reward, owns_measurer, declared)
