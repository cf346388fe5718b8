"""The environments under RLlib and TorchRL: ``make test-checkers`` installs them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

import drlpp.envs  # noqa: F401 - registers the environments
from benchmarks.made_up import generate
from drlpp.specs.cluster import Link, local_cluster

pytestmark = pytest.mark.checkers

NAME = "drlpp/PlacementSim-v0"


def made() -> gym.Env[Any, Any]:
    cluster = local_cluster(3, Link(bandwidth_bytes_per_second=1e9))
    return gym.make(NAME, profile=generate("blocks", 6, 1), cluster=cluster)


def test_torchrl_is_content() -> None:
    from torchrl.envs import GymWrapper
    from torchrl.envs.utils import check_env_specs

    wrapped = GymWrapper(made())
    check_env_specs(wrapped)
    rollout = wrapped.rollout(1)
    assert rollout["next", "done"][-1]


def test_rllib_samples_and_learns() -> None:
    """Its checks are made where a runner makes the environment and steps through it."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
    from ray.tune.registry import register_env

    register_env(NAME, lambda _: made())
    runner = SingleAgentEnvRunner(
        config=PPOConfig().environment(NAME).env_runners(num_env_runners=0)
    )
    try:
        episodes = runner.sample(num_episodes=4, random_actions=True)
    finally:
        runner.stop()
    assert len(episodes) >= 4
    for episode in episodes:
        assert episode.is_terminated
        assert len(episode) == 1
