"""Where actions choose the method drl-pp's agent does, too; else its action is the paper's."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drlpp.agents import AGENTS, DRLPP, PlacementPolicy
from drlpp.agents.paper.trajectory import MethodTrajectory
from drlpp.agents.saved_agent import load_agent
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.planners import Space, Vary
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.schedule.per_stage import of_links
from tests.support.planning.fake_measurer import FakeMeasurer, branching

DEPTH = frozenset({Vary.DEPTH})
MICROBATCHES = frozenset({Vary.MICROBATCHES})
BEST_DEPTH = 3


class LikesDepth(FakeMeasurer):
    """Two stages are fast, the more so the closer the depth of their link is to the best."""

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        outcome = super().measure(plan, minibatches)
        assert isinstance(outcome, Measurement)
        away = 9 if len(plan.placement.stages) != 2 else distance(plan.candidate)
        return outcome.model_copy(update={"seconds_per_minibatch": 0.1 * (1 + away)})


def distance(candidate: Candidate) -> float:
    """How far depths are from the best, on average over the links."""
    depths = of_links(candidate.method.in_flight_per_link, len(candidate.placement.stages))
    return float(np.mean([abs(depth - BEST_DEPTH) for depth in depths or (0,)]))


def environment(
    vary: frozenset[Vary] | None = DEPTH,
    repetitions: int = 1,
    measurer: FakeMeasurer | None = None,
    **space: Any,
) -> PlacementEnv:
    measurer = measurer or FakeMeasurer(branching(12))
    prior = CostPrior.from_sizes(measurer.graph, measurer.accelerators)
    if vary is not None:
        prior = CostPrior(prior.problem, space=Space(DEFAULT_METHOD, vary, batch_size=8, **space))
    memory = MeasurementMemory(measurer, repetitions=repetitions)
    return PlacementEnv(memory, declared=prior)


def policy_of(env: PlacementEnv, **options: Any) -> PlacementPolicy:
    torch.manual_seed(0)
    return PlacementPolicy(
        env.observation_space, env.action_space, lambda _: 1e-3, env.graph, **options
    )


@pytest.mark.parametrize(("vary", "numbers"), [(DEPTH, 4), (MICROBATCHES, 1)])
def test_actions_choose_a_method_and_are_replayed(vary: frozenset[Vary], numbers: int) -> None:
    env = environment(vary)
    policy = policy_of(env, feasible=True)
    trajectories = policy.sample(8, 2)
    for trajectory in trajectories:
        assert env.action_space.contains(trajectory.action)
        assert "seconds" in env.step(trajectory.action)[4]
        assert isinstance(trajectory, MethodTrajectory)
        assert len(trajectory.methods) == numbers
        assert not any(trajectory.methods[trajectory.walk.stages :]), "behind the last stage"
    assert len({outcome.method for outcome in env.outcomes}) > 2
    with torch.no_grad():
        evaluation = policy.evaluate([one.walk for one in trajectories[::2]], trajectories)
    sampled = torch.tensor([trajectory.log_probs for trajectory in trajectories])
    free = evaluation.scheduler_free
    assert free.shape == (16, 4 + numbers)
    torch.testing.assert_close(evaluation.scheduler_log_probs, sampled[free], atol=1e-5, rtol=0)


def test_the_agent_learns_which_method_is_fast() -> None:
    env = environment(measurer=LikesDepth(branching(3), accelerators=2))
    agent = DRLPP("PlacementPolicy", env, seed=0, policy_kwargs={"feasible": True})

    def mean_distance() -> float:
        found = [env.codec.decode(one.action) for one in agent.policy.sample(256)]
        return float(np.mean([distance(one) for one in found if len(one.placement.stages) == 2]))

    before = mean_distance()
    agent.learn(640)
    assert before > 1
    assert mean_distance() < before / 2


def test_an_agent_that_chooses_methods_is_saved_and_goes_on(tmp_path: Path) -> None:
    agent = AGENTS["tuned"].build(environment(), seed=0)
    agent.learn(16)
    content = io.BytesIO()
    agent.save(content)
    (tmp_path / "agent.zip").write_bytes(content.getvalue())
    found = load_agent(DRLPP, tmp_path / "agent.zip", environment())
    assert isinstance(found._elites[0].trajectory, MethodTrajectory)
    for name, value in agent.policy.state_dict().items():
        assert torch.equal(found.policy.state_dict()[name], value), name
    assert found.learn(8, reset_num_timesteps=False).num_timesteps > agent.num_timesteps


@pytest.mark.parametrize("repetitions", [1, 3])
def test_what_is_too_stale_is_not_measured(repetitions: int) -> None:
    env = environment(repetitions=repetitions, most_staleness=2)
    whole, halves = [0] * 12 + [0] * 4, [0] * 6 + [1] * 6 + [0, 0, 1, 1]
    actions = np.array([[*whole, *[0] * 4], [*halves, *[0] * 4], [*halves, 0, 4, 0, 0]])
    env.prefetch(actions)
    outcomes = [env.step(action)[4] for action in actions]
    assert ["seconds" in info for info in outcomes] == [True, True, False]
    assert outcomes[2]["error_type"] == "invalid placement"
    assert outcomes[2]["reason"] == "a stage has a staleness of 5, of at most 2"
    assert len(env.outcomes) == 2


def test_two_stages_on_an_accelerator_are_not_for_this_policy() -> None:
    graph = branching(6)
    flushing = Method(schedule="gpipe", policy="sync", microbatches=2)
    prior = CostPrior.from_sizes(graph, 3, flushing)
    schedules = frozenset({Vary.SCHEDULE})

    def env(space: Space) -> PlacementEnv:
        declared = CostPrior(prior.problem, flushing, space)
        return PlacementEnv(MeasurementMemory(FakeMeasurer(graph, 3)), declared=declared)

    with pytest.raises(InvalidInput, match=r"leave these out, Space\(…, folds=False\)"):
        policy_of(env(Space(flushing, schedules)))
    unfolded = Space(flushing, schedules, folds=False)
    assert {method.schedule for method in unfolded.methods} == {"gpipe", "1f1b-flush", "zb-h1"}
    chosen = {one.methods for one in policy_of(env(unfolded)).sample(32)}  # type: ignore[attr-defined]
    assert chosen == {(0,), (1,), (2,)}
