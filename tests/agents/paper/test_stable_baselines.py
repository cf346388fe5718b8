"""Users of stable-baselines3 find what they know: callbacks, logs, saving, vectorised ones."""

import csv
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.made_up import generate
from drlpp.agents import DRLPP
from drlpp.specs.cluster import Link, local_cluster

OBSERVATION = np.zeros(1, np.float32)


ARGUMENTS = {
    "profile": generate("chain", 6, seed=0),
    "cluster": local_cluster(2, Link(bandwidth_bytes_per_second=1e7)),
}


def environment() -> gym.Env:
    return gym.make("drlpp/PlacementSim-v0", **ARGUMENTS)


def agent_on(env: Any, **options: Any) -> DRLPP:
    return DRLPP(
        "PlacementPolicy",
        env,
        partitions_per_rollout=4,
        placements_per_partition=2,
        policy_kwargs={"encoder_units": (8, 16)},
        seed=0,
        **options,
    )


def test_predictions_are_actions() -> None:
    env = environment()
    agent = agent_on(env)
    likeliest = [agent.predict(OBSERVATION, deterministic=True)[0] for _ in range(5)]
    assert all(np.array_equal(action, likeliest[0]) for action in likeliest)
    sampled = [agent.predict(OBSERVATION)[0] for _ in range(20)]
    assert len({action.tobytes() for action in sampled}) > 1
    assert all(env.action_space.contains(action) for action in [*likeliest, *sampled])
    action, state = agent.predict(np.zeros((3, 1), np.float32))
    assert action.shape == (3, *env.action_space.shape)
    assert state is None


def test_the_best_model_of_an_evaluation_reloads(tmp_path: Path) -> None:
    evaluation = Monitor(environment())
    callback = EvalCallback(
        evaluation,
        best_model_save_path=str(tmp_path),
        log_path=str(tmp_path),
        eval_freq=8,
        n_eval_episodes=2,
        verbose=0,
    )
    agent_on(environment()).learn(64, callback=callback)
    loaded = DRLPP.load(tmp_path / "best_model.zip", environment())
    mean, _ = evaluate_policy(loaded, evaluation, n_eval_episodes=2)
    assert mean == pytest.approx(callback.best_mean_reward)
    results = np.load(tmp_path / "evaluations.npz")["results"]
    assert results.mean(axis=1).max() == pytest.approx(mean)
    loaded.learn(8)


def test_every_format_of_the_log_has_the_scalars(tmp_path: Path) -> None:
    agent = agent_on(environment())
    agent.set_logger(configure(str(tmp_path), ["csv", "tensorboard", "json"]))
    agent.learn(24)
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "time/fps",
        "train/loss",
        "train/learning_rate",
        "placement/best_seconds",
        "placement/invalid_share",
    }
    assert expected | {"time/total_timesteps", "time/iterations"} <= set(rows[0])
    steps = [int(row["time/total_timesteps"]) for row in rows]
    assert steps == sorted(set(steps))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert expected <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("placement/best_seconds")] == steps


def test_environments_of_their_own_processes() -> None:
    env = make_vec_env(
        "drlpp/PlacementSim-v0",
        n_envs=2,
        env_kwargs=ARGUMENTS,
        vec_env_cls=SubprocVecEnv,
        vec_env_kwargs={"start_method": "fork"},
    )
    try:
        agent = agent_on(env)
        agent.learn(16)
        assert agent.num_timesteps % 2 == 0
        assert all(summary.distinct > 0 for summary in env.get_attr("summary"))
        mean, _ = evaluate_policy(agent, env, n_eval_episodes=4)
        assert np.isfinite(mean)
    finally:
        env.close()
