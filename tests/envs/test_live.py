"""The environments over real workers."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import drlpp.envs  # noqa: F401 - registers the environments
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession


def test_a_placement_is_measured_once_on_a_session_that_stays_open(tmp_path: Path) -> None:
    reference = ModelReference.named("tests.support.models.small:perceptron", layers=1)
    with ClusterSession(reference, workers=2) as session:
        env = gym.make(
            "drlpp/PlacementLive-v0",
            measurer=session,
            minibatches=4,
            path=tmp_path / "measurements.jsonl",
        )
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
