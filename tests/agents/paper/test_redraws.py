"""What leaves a partition without an accelerator is penalised, and drawn again (drl-pp §3.3)."""

from collections import Counter
from typing import Any

import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from drlpp.agents import DRLPP
from drlpp.agents.paper.advantages import less_penalties
from drlpp.agents.paper.trajectory import Rewarded
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidInput
from tests.support.planning.fake_measurer import FakeMeasurer, chain

SCHEMES, PLACEMENTS = 4, 3


def environment(operators: int = 8, accelerators: int = 4) -> PlacementEnv:
    return PlacementEnv(MeasurementMemory(FakeMeasurer(chain(operators), accelerators)))


class Rollouts(BaseCallback):
    """Keeps what every rollout held and what was logged of it."""

    def __init__(self) -> None:
        super().__init__()
        self.content: list[list[Rewarded]] = []
        self.logged: list[dict[str, Any]] = []
        self.timesteps: list[int] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.content.append(list(self.model.rollout_buffer.content))
        self.logged.append(dict(self.logger.name_to_value))
        self.timesteps.append(self.num_timesteps)


def learned(env: Any, timesteps: int = 100, **options: Any) -> tuple[DRLPP, Rollouts]:
    arguments: dict[str, Any] = {
        "partitions_per_rollout": SCHEMES,
        "placements_per_partition": PLACEMENTS,
        # Walks of eight operators are cut often, so that much is invalid.
        "policy_kwargs": {"temperature": -1.0, "encoder_units": (8, 8)},
    }
    agent = DRLPP("PlacementPolicy", env, seed=0, **{**arguments, **options})
    rollouts = Rollouts()
    agent.learn(timesteps, callback=rollouts)
    return agent, rollouts


def by_scheme(content: list[Rewarded]) -> tuple[Counter[int], Counter[int]]:
    """Valid placements, and all draws, of every scheme of a rollout."""
    valid: Counter[int] = Counter()
    drawn: Counter[int] = Counter()
    for rewarded in content:
        drawn[id(rewarded.trajectory.walk)] += 1
        valid[id(rewarded.trajectory.walk)] += not rewarded.invalid
    return valid, drawn


def test_every_scheme_gets_its_placements() -> None:
    env = environment()
    agent, rollouts = learned(env, redraws=1000)
    for content in rollouts.content:
        valid, _ = by_scheme(content)
        assert list(valid.values()) == [PLACEMENTS] * SCHEMES
    assert any(rewarded.invalid for content in rollouts.content for rewarded in content)
    assert rollouts.timesteps == [
        sum(len(content) for content in rollouts.content[: i + 1])
        for i in range(len(rollouts.content))
    ]
    assert agent.num_timesteps == rollouts.timesteps[-1] >= 100
    # Only what can run reached the measurer.
    summary = env.summary
    assert summary.distinct + summary.hits == sum(
        not rewarded.invalid for content in rollouts.content for rewarded in content
    )


def test_the_penalised_placement_stays_for_the_scheduler_only() -> None:
    agent, rollouts = learned(environment(), timesteps=1, redraws=1000)
    buffer = agent.rollout_buffer
    invalid = [rewarded for rewarded in buffer.content if rewarded.invalid]
    assert {rewarded.reward for rewarded in invalid} == {-10.0}
    assert len(buffer.rewards) == len(buffer.content) > SCHEMES * PLACEMENTS
    schemes, means = buffer.partition_rewards()
    assert len(schemes) == SCHEMES
    for walk, mean in zip(schemes, means, strict=True):
        rewards = [r.reward for r in buffer.content if r.trajectory.walk is walk and not r.invalid]
        assert len(rewards) == PLACEMENTS
        assert mean == pytest.approx(sum(rewards) / PLACEMENTS)
    share = rollouts.logged[0]["placement/invalid_share"]
    assert share == pytest.approx(len(invalid) / len(buffer.content))


class NothingRuns(FakeMeasurer):
    def measure(self, plan: Any, minibatches: int = 30) -> Any:
        raise InvalidInput("the method has no room for that many minibatches in flight")


@pytest.mark.parametrize("redraws", [0, 5])
def test_a_scheme_that_can_never_run_is_given_up(redraws: int) -> None:
    env = PlacementEnv(MeasurementMemory(NothingRuns(chain(8), 4)))
    agent, rollouts = learned(env, timesteps=1, redraws=redraws)
    valid, drawn = by_scheme(rollouts.content[0])
    assert set(valid.values()) == {0}
    assert set(drawn.values()) == {PLACEMENTS * (1 + redraws)}
    assert agent.baseline is None
    assert all(value.isfinite().all() for value in agent.policy.state_dict().values())


@pytest.mark.parametrize("environments", [2, 3])
def test_several_environments_step_together(environments: int) -> None:
    env = DummyVecEnv([environment] * environments)
    agent, rollouts = learned(env, redraws=1000)
    lengths = [len(content) for content in rollouts.content]
    assert all(length % environments == 0 for length in lengths)
    assert agent.num_timesteps == sum(lengths)
    for content in rollouts.content:
        valid, _ = by_scheme(content)
        assert len(valid) == SCHEMES
        assert all(PLACEMENTS <= count < PLACEMENTS + environments for count in valid.values())


def test_what_was_drawn_again_is_replayed_exactly() -> None:
    agent, rollouts = learned(environment(), timesteps=1, redraws=1000, learning_rate=1e-30)
    trajectories = [rewarded.trajectory for rewarded in rollouts.content[0]]
    with torch.no_grad():
        evaluation = agent.policy.evaluate([trajectories[0].walk], trajectories)
    sampled = torch.tensor([trajectory.log_probs for trajectory in trajectories])
    torch.testing.assert_close(
        evaluation.scheduler_log_probs, sampled[evaluation.scheduler_free], atol=1e-5, rtol=0
    )


def test_placements_are_drawn_for_the_schemes_that_are_given() -> None:
    policy = DRLPP("PlacementPolicy", environment(), seed=0).policy
    one, other = (trajectory.walk for trajectory in policy.sample(2))
    drawn = policy.resample([other, one, other])
    walks = [trajectory.walk for trajectory in drawn]
    assert walks[0] is walks[2] is other
    assert walks[1] is one
    assert all(
        set(trajectory.stage_of_accelerator) <= set(range(trajectory.walk.stages))
        for trajectory in drawn
    )
    assert policy.resample([]) == []


@pytest.mark.parametrize("feasible", [False, True])
def test_the_average_penalty_is_part_of_the_schedulers_baseline(feasible: bool) -> None:
    options = {"temperature": -1.0, "encoder_units": (8, 8), "feasible": feasible}
    agent, rollouts = learned(environment(), timesteps=1, policy_kwargs=options)
    share = rollouts.logged[0]["placement/invalid_share"]
    assert (share == 0) == feasible
    content = agent.rollout_buffer.content
    stages = [rewarded.trajectory.walk.stages for rewarded in content]
    plain = agent._advantages(agent.rollout_buffer.rewards, stages)
    # A penalty is far below the bound of advantages.
    expected = plain + share * agent.advantage_clip
    torch.testing.assert_close(less_penalties(plain, content), expected, atol=1e-5, rtol=0)
