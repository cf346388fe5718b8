"""What leaves a partition without an accelerator is penalised, and drawn again (drl-pp §3.3)."""

from collections import Counter
from typing import Any

import pytest
from stable_baselines3.common.callbacks import BaseCallback

from drlpp.agents import DRLPP
from drlpp.agents.paper.rollout import Rewarded
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidInput
from tests.support.planning.fake_measurer import FakeMeasurer, chain

SCHEMES, PLACEMENTS = 4, 3


def environment(operators: int = 8, accelerators: int = 4) -> PlacementEnv:
    return PlacementEnv(MeasurementMemory(FakeMeasurer(chain(operators), accelerators)))


class Rollouts(BaseCallback):
    """Keeps what every rollout held."""

    def __init__(self) -> None:
        super().__init__()
        self.content: list[list[Rewarded]] = []
        self.timesteps: list[int] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.content.append(list(self.model.rollout_buffer.content))
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
    ran = {
        rewarded.trajectory.action.tobytes()
        for content in rollouts.content
        for rewarded in content
        if not rewarded.invalid
    }
    assert env.summary.distinct == len(ran)


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
