"""What an episode came to can be written, read, replayed, and comes out again."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from drlpp.costs.synthetic_profiles import generate
from drlpp.envs import EpisodeState, MeasuringEnv
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_document, write_document
from drlpp.placement.measurement import FailedMeasurement
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster

CLUSTER = local_cluster(3, Link(bandwidth_bytes_per_second=1e9))
PROFILE = generate("blocks", 6, 1)
MADE = {"profile": PROFILE, "cluster": CLUSTER}


def made(name: str = "Placement") -> MeasuringEnv:
    env = gym.make(f"drlpp/{name}Sim-v0", **MADE).unwrapped
    assert isinstance(env, MeasuringEnv)
    return env


@pytest.mark.parametrize("name", ["Placement", "PlacementStepwise"])
def test_a_state_is_replayed(name: str, tmp_path: Path) -> None:
    env = made(name)
    env.reset(seed=7)
    assert env.state is None
    actions = [0, 0, 0, 1, 1, 1, 0, 0, 1]
    if name == "Placement":
        _, reward, *_ = env.step(np.array(actions))
    else:
        for action in actions:
            _, reward, *_ = env.step(np.int64(action))
    written = write_document(tmp_path / "state.json", env.state)  # type: ignore[arg-type]
    state = read_document(written, EpisodeState)
    assert state == env.state
    assert (state.seed, state.candidate.configuration) == (7, "2-1")
    again = state.replay(SimulatedCluster(PROFILE, CLUSTER))
    assert again == state.outcome
    assert -np.log(again.seconds_per_minibatch) == pytest.approx(reward)  # type: ignore[union-attr]
    env.reset()
    assert env.state is not None
    assert env.state.seed == 7


def test_a_placement_that_cannot_be_has_a_state_too() -> None:
    env = made()
    env.reset()
    env.step(np.array([1, 0, 0, 0, 0, 0, 0, 1, 1]))
    assert env.state is not None
    assert isinstance(env.state.outcome, FailedMeasurement)
    with pytest.raises(InvalidInput, match="in the later stage"):
        env.state.replay(SimulatedCluster(PROFILE, CLUSTER))
