"""The agent learns, is deterministic, and is rewarded as the paper says."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from drlpp.agents import DRLPP
from drlpp.agents.paper.algorithm import clipped_surrogate, mean
from drlpp.agents.paper.rollout import Rewarded, Trajectory, TrajectoryBuffer
from drlpp.agents.paper.walk import PartitionWalk
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidInput
from tests.support.planning.fake_measurer import FakeMeasurer, chain

SMALL: dict[str, Any] = {"partitions_per_rollout": 4, "placements_per_partition": 2, "seed": 0}
FEASIBLE = {"feasible": True}
# Walks of eight operators are cut often, so that much is invalid.
CUTS_OFTEN = {"temperature": -1.0, "encoder_units": (8, 8)}


def environment(operators: int = 6, accelerators: int = 3, **options: Any) -> PlacementEnv:
    return PlacementEnv(MeasurementMemory(FakeMeasurer(chain(operators), accelerators, **options)))


class Rewards(BaseCallback):
    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []

    def _on_step(self) -> bool:
        self.values += self.locals["rewards"].tolist()
        return True


class Rollouts(BaseCallback):
    """Keeps what every rollout held."""

    def __init__(self) -> None:
        super().__init__()
        self.content: list[list[Rewarded]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.content.append(list(self.model.rollout_buffer.content))


def weights(agent: DRLPP) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in agent.policy.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


class BanditMeasurer(FakeMeasurer):
    """Two operators on two accelerators; only one of the placements is fast."""

    def __init__(self) -> None:
        super().__init__(chain(2), accelerators=2)

    def measure(self, plan: Any, minibatches: int = 30) -> Any:
        outcome = super().measure(plan, minibatches)
        fast = [stage.accelerators for stage in plan.placement.stages] == [(1,), (0,)]
        return outcome.model_copy(update={"seconds_per_minibatch": 0.1 if fast else 1.0})


def test_it_finds_the_good_arm_of_a_bandit() -> None:
    agent = DRLPP(
        "PlacementPolicy",
        PlacementEnv(MeasurementMemory(BanditMeasurer())),
        partitions_per_rollout=16,
        placements_per_partition=2,
        seed=0,
        policy_kwargs=FEASIBLE,
    )
    rewards = Rewards()
    agent.learn(448, callback=rewards)
    assert np.mean(rewards.values[:64]) < 0.8
    assert np.mean(rewards.values[-64:]) > 1.8
    action, _ = agent.predict(np.zeros(1, np.float32), deterministic=True)
    assert action.tolist() == [0, 1, 1, 0]


def test_one_seed_gives_one_result() -> None:
    results = []
    for seed in (3, 3, 4):
        agent = DRLPP("PlacementPolicy", environment(), **{**SMALL, "seed": seed})
        rewards = Rewards()
        agent.learn(32, callback=rewards)
        results.append((weights(agent), rewards.values))
    assert same(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    assert not same(results[0][0], results[2][0])


def test_a_saved_agent_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    agent = DRLPP("PlacementPolicy", environment(), **SMALL)
    agent.learn(16)
    agent.save(tmp_path / "model.zip")
    loaded = DRLPP.load(tmp_path / "model.zip", environment())
    assert same(weights(agent), weights(loaded))
    assert loaded.baseline == agent.baseline
    for each in (agent, loaded):
        each.set_random_seed(7)
        each.learn(16, reset_num_timesteps=False)
    assert loaded.num_timesteps == agent.num_timesteps >= 32
    assert same(weights(agent), weights(loaded))


def test_several_environments_share_a_rollout() -> None:
    two = DummyVecEnv([environment] * 2)
    agent = DRLPP("PlacementPolicy", two, **SMALL, policy_kwargs=FEASIBLE)
    assert agent.learn(20).num_timesteps == 24
    # Eight placements do not divide by three: one more fills the last step.
    several = DRLPP("PlacementPolicy", DummyVecEnv([environment] * 3), **SMALL)
    assert several.learn(1).num_timesteps % 3 == 0


def test_other_graphs_and_other_environments_are_refused(tmp_path: Path) -> None:
    agent = DRLPP("PlacementPolicy", environment(), **SMALL)
    agent.save(tmp_path / "model.zip")

    class Renamed(FakeMeasurer):
        def __init__(self) -> None:
            super().__init__(chain(6), 3)
            first = self.graph.operators[0].model_copy(update={"name": "another"})
            self.graph = self.graph.model_copy(
                update={"operators": (first, *self.graph.operators[1:])}
            )

    other = PlacementEnv(MeasurementMemory(Renamed()))
    other.graph.__dict__.pop("fingerprint", None)
    with pytest.raises(InvalidInput, match="train a new agent"):
        DRLPP.load(tmp_path / "model.zip", other)
    with pytest.raises(InvalidInput, match="train a new agent"):
        agent.set_env(other)

    class Plain(gym.Env):
        observation_space = gym.spaces.Box(0, 1, (1,))
        action_space = gym.spaces.MultiDiscrete([2, 2])

    with pytest.raises(InvalidInput, match="placement environment"):
        DRLPP("PlacementPolicy", Plain())


def by_scheme(content: list[Rewarded]) -> tuple[Counter[int], Counter[int]]:
    """Valid placements, and all draws, of every scheme of a rollout."""
    drawn = Counter(id(rewarded.trajectory.walk) for rewarded in content)
    valid = Counter(dict.fromkeys(drawn, 0))
    valid.update(id(rewarded.trajectory.walk) for rewarded in content if not rewarded.invalid)
    return valid, drawn


def test_what_leaves_a_partition_without_an_accelerator_is_drawn_again() -> None:
    env, rollouts = environment(8, 4), Rollouts()
    agent = DRLPP("PlacementPolicy", env, **SMALL, redraws=1000, policy_kwargs=CUTS_OFTEN)
    agent.learn(60, callback=rollouts)
    for content in rollouts.content:
        assert list(by_scheme(content)[0].values()) == [2] * 4
    every = [rewarded for content in rollouts.content for rewarded in content]
    assert any(rewarded.invalid for rewarded in every)
    assert agent.num_timesteps == len(every) >= 60
    # Only what can run reached the measurer.
    ran = {one.trajectory.action.tobytes() for one in every if not one.invalid}
    assert env.summary.distinct == len(ran)


class NothingRuns(FakeMeasurer):
    def measure(self, plan: Any, minibatches: int = 30) -> Any:
        raise InvalidInput("the method has no room for that many minibatches in flight")


@pytest.mark.parametrize("redraws", [0, 5])
def test_a_scheme_that_can_never_run_is_given_up(redraws: int) -> None:
    env, rollouts = PlacementEnv(MeasurementMemory(NothingRuns(chain(8), 4))), Rollouts()
    agent = DRLPP("PlacementPolicy", env, **SMALL, redraws=redraws, policy_kwargs=CUTS_OFTEN)
    agent.learn(1, callback=rollouts)
    valid, drawn = by_scheme(rollouts.content[0])
    assert set(valid.values()) == {0}
    assert set(drawn.values()) == {2 * (1 + redraws)}
    assert agent.baseline is None
    assert all(value.isfinite().all() for value in weights(agent).values())


def walk_of(stages: int) -> PartitionWalk:
    return PartitionWalk((), (), tuple(range(stages)), (), ())


def rewarded(stages: int | PartitionWalk, reward: float, error: str | None = None) -> Rewarded:
    walk = walk_of(stages) if isinstance(stages, int) else stages
    return Rewarded(Trajectory(walk, tuple(range(walk.stages)), ()), reward, error)


def test_a_scheme_is_rewarded_with_the_mean_of_its_placements() -> None:
    first, second, third = walks = [walk_of(2) for _ in range(3)]
    buffer = TrajectoryBuffer(
        [
            rewarded(first, 3.0),
            rewarded(first, 1.0),
            rewarded(first, -10.0, "invalid placement"),
            rewarded(second, -10.0, "invalid placement"),
            rewarded(third, -10.0, "out of memory"),
            rewarded(third, 2.0),
        ]
    )
    schemes, rewards = buffer.partition_rewards()
    assert [id(walk) for walk in schemes] == [id(walks[0]), id(walks[2])]
    assert rewards.tolist() == [2.0, -4.0]
    assert buffer.measured_rewards.tolist() == [3.0, 1.0, 2.0]
    assert buffer.rewards.tolist() == [3.0, 1.0, -10.0, -10.0, -10.0, 2.0]
    assert [id(walk) for walk in buffer.missing(2)] == [id(second)] * 2


def test_one_average_is_the_papers() -> None:
    env = PlacementEnv(MeasurementMemory(FakeMeasurer(chain(8), 2)))
    agent = DRLPP("PlacementPolicy", env, seed=0)
    agent.rollout_buffer.content = [rewarded(1, 1.0), rewarded(2, 3.0)]
    agent.baseline = 1.5
    batch = agent._batch()
    assert batch.walk_advantages.tolist() == batch.placement_advantages.tolist() == [-0.5, 1.5]
    # The average of penalties is taken off all.
    agent.rollout_buffer.content.append(rewarded(2, -10.0, "invalid placement"))
    assert agent._batch().placement_advantages.tolist() == [0.5, 2.5, -2.0]


def test_the_ratio_is_clipped_by_choice() -> None:
    ratios = [1.0, 2.0, 2.0, 0.5, 0.5]
    advantages = [3.0, 1.0, -1.0, 1.0, -1.0]
    loss, kl, clipped = clipped_surrogate(
        torch.tensor([math.log(ratio) for ratio in ratios]),
        torch.zeros(5),
        torch.tensor(advantages),
        0.2,
    )
    assert loss.item() == pytest.approx(-(3.0 + 1.2 - 2.0 + 0.5 - 0.8) / 5)
    assert clipped == 4
    assert kl.item() == pytest.approx(sum(ratio - 1 - math.log(ratio) for ratio in ratios))
    empty = torch.zeros(0)
    assert clipped_surrogate(empty, empty, empty, 0.2)[0].item() == mean(empty).item() == 0.0
