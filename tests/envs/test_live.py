"""The environments over real workers."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import drlpp.envs  # noqa: F401 - registers the environments
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession


@pytest.mark.filterwarnings("ignore:.*not within the observation space.*")
def test_both_checkers_pass_on_live_workers(tmp_path: Path) -> None:
    reference = ModelReference.named("tests.support.models.small:perceptron", layers=1)
    with ClusterSession(reference, workers=2) as session:
        env = gym.make(
            "drlpp/PlacementLive-v0",
            measurer=session,
            minibatches=4,
            path=tmp_path / "measurements.jsonl",
            disable_env_checker=True,
        )
        gymnasium_check_env(env.unwrapped, skip_render_check=True)
        sb3_check_env(env.unwrapped)
        env.reset()
        # Three operators, then two accelerators: a pipeline of two stages.
        action = np.array([0, 0, 1, 0, 1])
        _, reward, terminated, _, info = env.step(action)
        assert terminated
        assert reward == pytest.approx(-np.log(info["seconds"]))
        processes = session.process_ids
        env.reset()
        _, again, *_ = env.step(action)
        assert again == reward, "a placement is measured once"
        env.close()
        assert session.process_ids == processes


def test_an_environment_opens_its_own_session() -> None:
    env = gym.make(
        "drlpp/PlacementLive-v0",
        model="tests.support.models.small:perceptron",
        workers=2,
        minibatches=4,
    )
    operators = len(env.unwrapped.graph)  # type: ignore[attr-defined]
    env.reset()
    _, _, _, _, info = env.step(np.array([0] * operators + [0, 0]))
    assert info["configuration"] == "2"
    env.close()
