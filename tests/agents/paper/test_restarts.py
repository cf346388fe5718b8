"""A policy that has settled on something bad begins again with the best that was found."""

from collections import Counter
from typing import Any

import pytest
import torch

from drlpp.agents import DRLPP
from drlpp.agents.paper.rollout import Rewarded, best_of
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Outcome
from tests.support.planning.fake_measurer import FakeMeasurer, chain


class CutsPay(FakeMeasurer):
    """Whatever is not cut takes 3 s."""

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        outcome = super().measure(plan, minibatches)
        whole = len(plan.placement.stages) == 1
        return outcome.model_copy(update={"seconds_per_minibatch": 3.0}) if whole else outcome


def environment(operators: int = 8, accelerators: int = 3) -> PlacementEnv:
    return PlacementEnv(MeasurementMemory(CutsPay(chain(operators), accelerators)))


def built(env: PlacementEnv, **options: Any) -> DRLPP:
    kwargs = {"feasible": True}
    return DRLPP("PlacementPolicy", env, seed=0, policy_kwargs=kwargs, **options)


def settle(agent: DRLPP) -> torch.Tensor:
    """Let the policy never cut, for five rollouts or until it restarts; returns a weight of it."""
    agent.learn(32)
    before = next(agent.policy.parameters())
    agent.policy.partitioner.temperature.fill_(1e6)
    for _ in range(5):
        if not agent.restarts:
            agent.learn(32, reset_num_timesteps=False)
    return before


def test_new_weights_draw_the_best_half_of_the_time() -> None:
    agent = built(environment(), restart_after=3, elites=3)
    before = settle(agent)
    best = best_of(agent._elites, 3)
    assert agent.restarts == 1
    assert next(agent.policy.parameters()) is not before
    drawn = Counter(t.action.tobytes() for t in agent.policy.sample(100, 4))
    wanted = sum(drawn[one.trajectory.action.tobytes()] for one in best)
    # The rest explores.
    assert 0.4 * 400 < wanted < 400


@pytest.mark.parametrize(
    ("stuck", "reward", "restarts"), [(2, 0.0, 0), (3, 0.0, 1), (3, 0.99, 0), (3, 0.97, 1)]
)
def test_it_is_stuck_after_some_rollouts_below_the_best(
    stuck: int, reward: float, restarts: int
) -> None:
    agent = built(environment(), restart_after=3)
    trajectories = agent.policy.sample(2, 1)
    agent._elites = [Rewarded(trajectories[0], 1.0, None)]
    agent.rollout_buffer.content = [Rewarded(trajectories[1], reward, None)]
    agent._rollouts_stuck = stuck
    assert int(agent._stuck) == restarts
