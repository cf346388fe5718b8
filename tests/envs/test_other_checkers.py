"""The environments under RLlib and TorchRL: ``make test-checkers`` installs them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

import drlpp.envs  # noqa: F401 - registers the environments
from drlpp.costs.synthetic_profiles import generate
from drlpp.specs.cluster import Link, local_cluster

pytestmark = pytest.mark.checkers

IDS = ("drlpp/PlacementSim-v0", "drlpp/PlacementStepwiseSim-v0")
OPERATORS, ACCELERATORS = 6, 3


def made(name: str) -> gym.Env[Any, Any]:
    cluster = local_cluster(ACCELERATORS, Link(bandwidth_bytes_per_second=1e9))
    return gym.make(name, profile=generate("blocks", OPERATORS, 1), cluster=cluster)


@pytest.mark.parametrize("name", IDS)
def test_torchrl_is_content(name: str) -> None:
    from torchrl.envs import GymWrapper
    from torchrl.envs.utils import check_env_specs

    wrapped = GymWrapper(made(name))
    check_env_specs(wrapped)
    rollout = wrapped.rollout(OPERATORS + ACCELERATORS)
    assert rollout["next", "done"][-1]


@pytest.mark.parametrize("name", IDS)
def test_rllib_samples_and_learns(name: str) -> None:
    """Its checks are made where a runner makes the environment and steps through it."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
    from ray.tune.registry import register_env

    register_env(name, lambda _: made(name))
    runner = SingleAgentEnvRunner(
        config=PPOConfig().environment(name).env_runners(num_env_runners=0)
    )
    try:
        episodes = runner.sample(num_episodes=4, random_actions=True)
    finally:
        runner.stop()
    assert len(episodes) >= 4
    for episode in episodes:
        assert episode.is_terminated
        assert 1 <= len(episode) <= OPERATORS + ACCELERATORS
