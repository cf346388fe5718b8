"""What a rollout is compared with: means of schemes, one average, PPO choice by choice."""

import math

import pytest
import torch

from drlpp.agents import DRLPP
from drlpp.agents.paper.algorithm import clipped_surrogate, mean
from drlpp.agents.paper.rollout import Rewarded, Trajectory, TrajectoryBuffer
from drlpp.agents.paper.walk import PartitionWalk
from drlpp.envs import MeasurementMemory, PlacementEnv
from tests.support.planning.fake_measurer import FakeMeasurer, chain


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
