"""Steps that change a placement: what they do, what they are paid, and what an agent sees."""

from __future__ import annotations

import math
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as stable_baselines3_check

from benchmarks.made_up import generate
from drlpp.costs.workload import Workload
from drlpp.envs import PlacementImprove
from drlpp.errors import InvalidInput
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.planners import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Link, local_cluster

LINK = Link(bandwidth_bytes_per_second=5e9, latency_seconds=5e-5)
SLOW = Link(bandwidth_bytes_per_second=1e9, latency_seconds=5e-5)
SMALL, LARGE = generate("chain", 5, 0), generate("blocks", 9, 1)
PROFILES = (SMALL, LARGE)
PROBLEMS = (
    PlanningProblem(Workload.of(SMALL), local_cluster(2, SLOW)),
    PlanningProblem(Workload.of(LARGE), local_cluster(3, LINK, (1.0, 1.0, 0.5))),
)
# Of three accelerators: stop, depth, two boundaries, and three that hold one of three or nothing.
FIRST_MOVE, FIRST_HELD = 3, 7


def environment(**options: Any) -> PlacementImprove:
    made = gym.make("drlpp/PlacementImprove-v0", problems=PROBLEMS, **options).unwrapped
    assert isinstance(made, PlacementImprove)
    return made


def test_checkers_are_content() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(environment())
    stable_baselines3_check(environment(), warn=False)


def test_ppo_learns_on_it_as_it_is() -> None:
    PPO("MultiInputPolicy", environment(steps=4), n_steps=8, batch_size=8, n_epochs=1).learn(16)


@pytest.mark.parametrize("number", [0, 1])
def test_possible_steps_lead_to_what_runs_and_are_paid_by_the_simulator(number: int) -> None:
    env, draw = environment(steps=60), np.random.default_rng(number)
    problem, graph = PROBLEMS[number], PROFILES[number].graph
    _, info = env.reset(options={"problem": number})
    first, paid, seen = info["seconds"], 0.0, set()
    assert first == info["reference_seconds"]
    ended = False
    while not ended:
        before, mask = env.candidate, info["action_mask"]
        action = int(draw.choice(np.flatnonzero(mask)[1:]))
        observed, reward, stopped, ended, info = env.step(action)
        assert env.observation_space.contains(observed)
        assert (env.candidate != before) == ("reason" not in info)
        ExecutionPlan.of(env.candidate, graph, problem.cluster.accelerators)
        paid += reward
        seen.add(info["configuration"].count("-"))
        assert not stopped
    assert len(seen) > 1, "stages begin and end"
    candidate = env.candidate
    again = simulate(problem.workload, problem.cluster, candidate.placement, candidate.method)
    assert info["seconds"] == pytest.approx(again.seconds_per_minibatch, rel=1e-3)
    assert paid == pytest.approx(math.log(first / info["seconds"]))


def test_what_is_not_possible_changes_nothing_and_stop_ends() -> None:
    env = environment()
    _, info = env.reset(options={"problem": 0})
    assert info["action_mask"].tolist() == env.action_masks().tolist()
    before = env.candidate
    for action in np.flatnonzero(~info["action_mask"]):
        _, reward, stopped, _, _ = env.step(action)
        assert (env.candidate, reward, stopped) == (before, 0.0, False)
    assert env.step(0)[1:3] == (0.0, True)
    assert env.candidate == before


def test_every_kind_of_step() -> None:
    env = environment()
    env.reset(options={"problem": 0})
    assert env.candidate.placement.configuration == "1-1"
    sizes = [len(stage.operators) for stage in env.candidate.placement.stages]
    env.step(FIRST_MOVE)
    assert len(env.candidate.placement.stages[0].operators) == sizes[0] - 1
    env.step(FIRST_MOVE + 1)
    assert len(env.candidate.placement.stages[0].operators) == sizes[0]
    depth = env.candidate.method.in_flight_per_link
    env.step(2)
    assert env.candidate.method.in_flight_per_link == depth + 1
    # The accelerator of a stage stays with it; when its last operator leaves, it follows.
    assert not env.action_masks()[FIRST_HELD + 3]
    for _ in range(sizes[0]):
        env.step(FIRST_MOVE)
    assert env.candidate.placement.configuration == "2"
    env.step(FIRST_HELD + 3)
    assert env.candidate.placement.configuration == "1"
    env.step(FIRST_HELD + 1)
    assert env.candidate.placement.configuration == "1-1"
    assert env.candidate.placement.stages[1].accelerators == (0,)


def test_observations_state_the_problem() -> None:
    env = environment()
    small, _ = env.reset(options={"problem": 0})
    large, _ = env.reset(options={"problem": 1})
    assert small["operators"][:, 0].tolist() == [1] * 5 + [0] * 4
    assert small["accelerators"][:, 0].tolist() == [1, 1, 0]
    assert large["accelerators"][:, 1].tolist() == [1, 1, 0.5]
    assert small["edges"][:5].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [9, 9]]
    for shares in (small["operators"][:, 1], large["operators"][:, 1]):
        assert shares.sum() == pytest.approx(1)
    assert large["stages"][:, 5].max() == 1
    wide = environment(sizes=(12, 20, 4))
    assert wide.reset()[0]["edges"].shape == (20, 2)
    assert wide.action_space == environment(sizes=(10, 20, 4)).action_space
    numbers = {env.reset(seed=seed)[1]["problem"] for seed in range(8)}
    assert numbers == {0, 1}


def test_memory_limits_what_is_possible() -> None:
    free = PlacementImprove(PROBLEMS[0])
    free.reset()
    needed = PROBLEMS[0].predict(free.candidate.placement).stages
    room = 1.01 * max(stage.memory_bytes for stage in needed)
    tight = local_cluster(2, SLOW, memory_bytes=room)
    env = PlacementImprove(PlanningProblem(Workload.of(SMALL), tight))
    env.reset()
    refused = 0
    for _ in range(4):
        before = env.candidate
        observed, reward, *_, info = env.step(FIRST_MOVE)
        assert 0 < observed["stages"][0, 6] <= 1
        if "reason" in info:
            refused += 1
            assert (env.candidate, reward) == (before, 0.0)
    assert refused


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: PlacementImprove([]), "at least one"),
        (lambda: environment(sizes=(9, 9, 2)), r"sizes is \(9, 9, 2\); .* at least \(9, "),
        (lambda: environment().reset(options={"problem": 2}), "number from 0 to 1"),
        (lambda: environment().reset(options={"problem": "a"}), "number from 0 to 1"),
        (lambda: environment().step(19), "expected a number from 0 to 18"),
        (
            lambda: PlacementImprove(
                PlanningProblem(
                    Workload.of(SMALL, Method(schedule="zb-v", policy="sync")),
                    local_cluster(2, LINK),
                )
            ),
            "two stages each",
        ),
    ],
)
def test_what_is_wrong_is_said(act: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        act()
