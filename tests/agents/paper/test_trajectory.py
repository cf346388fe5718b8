"""Rewards of partition schemes are means over their valid placements."""

import pytest
import torch

from drlpp.agents.paper.partitioner import RecurrentPartitioner
from drlpp.agents.paper.trajectory import Rewarded, Trajectory, TrajectoryBuffer
from drlpp.agents.paper.walk import PartitionWalk
from tests.support.planning.fake_measurer import chain


@pytest.fixture
def walks() -> list[PartitionWalk]:
    partitioner = RecurrentPartitioner(chain(4), 2, units=8, temperature=0.0)
    return partitioner.sample(torch.randn(4, 8), 3)


def rewarded(
    walk: PartitionWalk, accelerators: tuple[int, ...], reward: float, error: str | None = None
) -> Rewarded:
    return Rewarded(Trajectory(walk, accelerators, (0.0, 0.0)), reward, error)


def test_a_scheme_is_rewarded_with_the_mean_of_its_placements(walks: list[PartitionWalk]) -> None:
    buffer = TrajectoryBuffer()
    for content in (
        rewarded(walks[0], (0, 1), 3.0),
        rewarded(walks[0], (1, 0), 1.0),
        rewarded(walks[0], (0, 0), -10.0, "invalid placement"),
        rewarded(walks[1], (0, 0), -10.0, "invalid placement"),
        rewarded(walks[2], (0, 1), -10.0, "out of memory"),
        rewarded(walks[2], (1, 0), 2.0),
    ):
        buffer.add(content)
    schemes, rewards = buffer.partition_rewards()
    assert schemes == [walks[0], walks[2]]
    assert rewards.tolist() == [2.0, -4.0]
    assert buffer.measured_rewards.tolist() == [3.0, 1.0, 2.0]
    assert buffer.rewards.tolist() == [3.0, 1.0, -10.0, -10.0, -10.0, 2.0]
    buffer.reset()
    assert not buffer.content
