"""The guided agent on simulated clusters that are declared wrongly."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors import safe_open

from drlpp.agents import (
    AGENTS,
    PRETRAINED,
    GuidedDRLPP,
    GuidedHyperparameters,
    MeasurementBudgetCallback,
    learn_placement,
)
from drlpp.costs.profile import Profile
from drlpp.costs.synthetic_profiles import generate
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.envs.measuring.search_file import Confidence
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.planners import PLANNERS
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster

LINK = Link(bandwidth_bytes_per_second=2.5e8, latency_seconds=5e-5)
SPEEDS = (1.0, 1.0, 0.5)
# Without an end that is expected: tests count measurements.
QUICK = GuidedHyperparameters(practice=True, pretrained=False, evaluations=20, draws=2, gain=0)


def problem(operators: int = 10) -> tuple[Profile, SimulatedCluster]:
    profile = generate("layered", operators, 1)
    return profile, SimulatedCluster(profile, local_cluster(3, LINK, SPEEDS))


def environment(path: Path | None = None, operators: int = 10, **memory: int) -> PlacementEnv:
    profile, measurer = problem(operators)
    # Agents are told that all accelerators are equal.
    declared = CostPrior.of(profile, local_cluster(3, LINK))
    return PlacementEnv(MeasurementMemory(measurer, 30, path, **memory), declared=declared)


def learn(env: PlacementEnv, budget: int, seed: int = 0, **changes: object) -> GuidedDRLPP:
    agent = QUICK.model_copy(update=changes).build(env, seed=seed)
    return agent.learn(10_000, MeasurementBudgetCallback(env.memory, budget))


def seconds(outcome: Outcome) -> float:
    assert isinstance(outcome, Measurement)
    return outcome.seconds_per_minibatch


def test_undeclared_speeds_are_found_and_no_planner_is_better() -> None:
    env = environment()
    agent = learn(env, 10)
    assert env.memory.distinct == agent.num_timesteps <= 10
    best = env.memory.best()
    assert best is not None
    profile, measurer = problem()
    told = CostPrior.of(profile, measurer.cluster).problem
    for name in ("pipedream", "data-parallel"):
        for known in (told, env.declared.problem):
            planned = measurer.measure(PLANNERS[name](known).placement)
            assert seconds(best[1]) <= seconds(planned) * (1 + 1e-9)
    # What the policy sees by now are the speeds as they are.
    speeds = agent.policy.context.costs.speeds
    assert speeds[1:] / speeds[0] == pytest.approx([1, 0.5], rel=0.03)


def test_a_run_is_repeated_by_its_seed() -> None:
    runs = []
    for seed in (0, 0, 1):
        env = environment(operators=7)
        # The first few are planners' placements, whatever the seed.
        learn(env, 6, seed, evaluations=8)
        runs.append(list(env.outcomes))
    assert runs[0] == runs[1] != runs[2]


def test_a_loaded_agent_goes_on_with_everything_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    env = environment(path)
    agent = learn(env, 5)
    saved = io.BytesIO()
    agent.save(saved)
    saved.seek(0)
    again = environment(path)
    loaded = GuidedDRLPP.load(saved, env=again)
    for name, value in agent.policy.state_dict().items():
        assert torch.equal(value, loaded.policy.state_dict()[name])
    assert loaded.search == agent.search
    loaded.learn(10_000, MeasurementBudgetCallback(again.memory, 7), reset_num_timesteps=False)
    assert again.memory.distinct == 7
    assert list(again.outcomes)[:5] == list(env.outcomes)
    # The policy may answer with anything, but the answer for keeps is the fastest measured.
    action, _ = loaded.predict(again.reset()[0], deterministic=True)
    _, _, _, _, info = again.step(action)
    assert info["seconds"] == again.summary.best_seconds
    sampled, _ = loaded.predict(np.zeros((3, 1), np.float32))
    assert sampled.shape == (3, 13)


def test_what_is_far_slower_than_the_fastest_is_not_run_again() -> None:
    env, give_up = environment(repetitions=3), 1.02
    runs: list[tuple[float, float, bool]] = []

    def note(_: Candidate, outcome: Outcome) -> None:
        fastest = min((before for before, *_ in runs), default=math.inf)
        assert isinstance(outcome, Measurement)
        runs.append((outcome.seconds_per_minibatch, fastest, outcome.cut_short))

    env.memory.observers.append(note)
    learn(env, 4, give_up=give_up, practice=False)
    assert any(cut_short for *_, cut_short in runs)
    for own, fastest, cut_short in runs:
        assert cut_short == (own > give_up * fastest > 0)
    # In the simulator runs do not differ.
    count = {False: 3, True: 1}
    outcomes = [one for one in env.outcomes.values() if isinstance(one, Measurement)]
    assert len(runs) == sum(count[one.cut_short] for one in outcomes)


def test_the_shipped_agent_starts_from_the_shipped_weights(tmp_path: Path) -> None:
    assert AGENTS["guided"] == GuidedHyperparameters()
    assert AGENTS["guided-policy"] == GuidedHyperparameters(practice=True)
    agent = AGENTS["guided-policy"].build(environment(), seed=0)
    with safe_open(PRETRAINED, framework="pt") as file:
        for name, value in agent.policy.network.state_dict().items():
            assert torch.equal(value, file.get_tensor(name))


def test_a_run_says_how_sure_it_is(tmp_path: Path) -> None:
    sure: list[Confidence] = []
    memory = environment(tmp_path / "measurements.jsonl").memory
    assert learn_placement(
        memory,
        tmp_path,
        hyperparameters=QUICK,
        budget=3,
        seed=0,
        console=Console(quiet=True),
        on_confidence=sure.append,
    )
    assert memory.distinct == 3
    best = memory.best()
    assert best is not None
    assert [one.configuration for one in sure] == [best[0].configuration]
