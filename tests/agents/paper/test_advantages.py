"""Rewards are compared with the average, or with that of as many stages and the best of them."""

import torch

from drlpp.agents import DRLPP
from drlpp.agents.paper.advantages import StageBaselines
from drlpp.agents.paper.trajectory import Rewarded, Trajectory
from drlpp.agents.paper.walk import PartitionWalk
from drlpp.envs import MeasurementMemory, PlacementEnv
from tests.support.planning.fake_measurer import FakeMeasurer, chain


def rewarded(stages: int, reward: float, error: str | None = None) -> Rewarded:
    walk = PartitionWalk((), (), tuple(range(stages)), (), ())
    return Rewarded(Trajectory(walk, tuple(range(stages)), ()), reward, error)


def test_averages_are_of_as_many_stages_and_move() -> None:
    baselines = StageBaselines(decay=0.5)
    baselines.update([rewarded(1, 2.0), rewarded(2, 1.0), rewarded(2, 3.0), rewarded(2, -10, "x")])
    assert baselines.averages([1, 2]).tolist() == [2.0, 2.0]
    baselines.update([rewarded(2, 4.0)])
    assert baselines.averages([2, 1, 2]).tolist() == [3.0, 2.0, 3.0]
    # Nothing with three stages was measured.
    assert baselines.averages([3]).tolist() == [2.5]


def test_standings_are_by_the_best_ever_seen() -> None:
    baselines = StageBaselines(decay=0.5)
    assert baselines.standings([]).tolist() == []
    baselines.update([rewarded(1, 2.0), rewarded(2, 1.0), rewarded(2, 3.0)])
    baselines.update([rewarded(2, 0.0), rewarded(1, 1.0)])
    assert baselines.standings([1, 2, 2, 1]).tolist() == [-0.5, 0.5, 0.5, -0.5]
    # No number of stages has anything ahead of itself.
    assert baselines.standings([2, 2]).tolist() == [0.0, 0.0]


def test_one_average_is_the_papers() -> None:
    agent = DRLPP(
        "PlacementPolicy", PlacementEnv(MeasurementMemory(FakeMeasurer(chain(8), 2))), seed=0
    )
    agent.rollout_buffer.content = [rewarded(1, 1.0), rewarded(2, 3.0)]
    agent.baseline = 1.5
    rewards = agent.rollout_buffer.rewards
    assert agent._advantages(rewards, [1, 2]).tolist() == [-0.5, 1.5]
    agent.stage_baselines = StageBaselines(0.5)
    agent.stage_baselines.update(agent.rollout_buffer.content)
    assert torch.equal(agent._advantages(rewards, [1, 2]), torch.zeros(2))
