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
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv

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
from drlpp.envs.measuring.search_file import Sureness
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, Space, Vary
from drlpp.planners.model_based.belief import Belief
from drlpp.planners.model_based.options import Options
from drlpp.planners.model_based.recalibration import Recalibration
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster
from tests.support.in_turns import fast_are
from tests.support.strategies.graphs import chain_of

LINK = Link(bandwidth_bytes_per_second=2.5e8, latency_seconds=5e-5)
SPEEDS = (1.0, 1.0, 0.5, 0.5)
# Without an end that is expected: tests count measurements.
QUICK = GuidedHyperparameters(practice=True, pretrained=False, evaluations=20, draws=2, gain=0)


def problem(operators: int = 16) -> tuple[Profile, SimulatedCluster]:
    profile = generate("layered", operators, 1)
    return profile, SimulatedCluster(profile, local_cluster(4, LINK), SPEEDS)


def environment(path: Path | None = None) -> PlacementEnv:
    profile, measurer = problem()
    # Agents are told that all accelerators are equal.
    declared = CostPrior.of(profile, local_cluster(4, LINK))
    return PlacementEnv(MeasurementMemory(measurer, 30, path), declared=declared)


def learn(env: PlacementEnv, budget: int, seed: int = 0, **changes: object) -> GuidedDRLPP:
    agent = QUICK.model_copy(update=changes).build(env, seed=seed)
    return agent.learn(10_000, MeasurementBudgetCallback(env.memory, budget))


def seconds(outcome: Outcome) -> float:
    assert isinstance(outcome, Measurement)
    return outcome.seconds_per_minibatch


def test_undeclared_speeds_are_found_and_no_planner_is_better() -> None:
    env = environment()
    agent = learn(env, 16)
    assert env.memory.distinct == agent.num_timesteps == 16
    best = env.memory.best()
    assert best is not None
    profile, measurer = problem()
    told = CostPrior.of(profile, measurer.cluster).problem
    for name in ("exact", "pipedream", "data-parallel"):
        for known in (told, env.declared.problem):
            planned = measurer.measure(PLANNERS[name](known).placement)
            assert seconds(best[1]) <= seconds(planned) * (1 + 1e-9)
    # What the policy sees by now are the speeds as they are.
    costs = agent.policy.context.costs
    assert costs is not None
    assert costs.speeds[2:] / costs.speeds[:2] == pytest.approx([0.5, 0.5], rel=0.03)


@pytest.mark.slow
def test_practice_raises_the_reward_of_what_the_policy_imagines(tmp_path: Path) -> None:
    env = environment()
    agent = QUICK.model_copy(
        update={"learning_rate": 3e-3, "n_epochs": 4, "patience": 0, "evaluations": 10}
    ).build(env, seed=0)
    agent.set_logger(configure(str(tmp_path), ["csv"]))
    agent.learn(10_000, MeasurementBudgetCallback(env.memory, 80))
    log = np.genfromtxt(tmp_path / "progress.csv", delimiter=",", names=True, deletechars="")
    rewards = log["placement/mean_reward"]
    assert rewards[-5:].mean() > rewards[:5].mean() + 0.1
    errors = log["placement/prediction_error"]
    assert np.nanmean(errors[-5:]) < 0.02 < np.nanmax(errors[:3])


def test_a_run_is_repeated_by_its_seed() -> None:
    runs = []
    for seed in (0, 0, 1):
        env = environment()
        # The first few are planners' placements, whatever the seed.
        learn(env, 8, seed)
        runs.append(list(env.outcomes))
    assert runs[0] == runs[1] != runs[2]


def test_what_was_measured_last_counts_and_the_first_needs_no_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, drawn = environment(), []
    believed = Recalibration._believed

    def counted(self: Recalibration, *, thorough: bool = False) -> Belief:
        drawn.append((len(self.measured), thorough))
        return believed(self, thorough=thorough)

    monkeypatch.setattr(Recalibration, "_believed", counted)
    agent = learn(env, 3)
    assert drawn == [(1, False), (2, False)]
    assert agent.env is not None
    measured = agent.recalibration(agent.env).measured
    assert {candidate.canonical for candidate in measured} == set(env.outcomes)
    sure = agent.sureness()
    assert drawn[2:] == [(3, True)]
    best = env.memory.best()
    assert best is not None
    assert sure is not None
    assert (sure.configuration, sure.method) == (best[0].configuration, best[0].method)
    belief = agent.recalibration(agent.env).last_belief
    assert belief is not None
    assert (sure.share, sure.expected_gain) == (belief.sureness, belief.gain)


def test_a_loaded_agent_goes_on_with_everything_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    env = environment(path)
    agent = learn(env, 6)
    saved = io.BytesIO()
    agent.save(saved)
    saved.seek(0)

    again = environment(path)
    loaded = GuidedDRLPP.load(saved, env=again)
    for name, value in agent.policy.state_dict().items():
        assert torch.equal(value, loaded.policy.state_dict()[name])
    assert loaded.search == agent.search
    loaded.learn(10_000, MeasurementBudgetCallback(again.memory, 8), reset_num_timesteps=False)
    assert again.memory.distinct == 8
    assert list(again.outcomes)[:6] == list(env.outcomes)
    # Nothing was asked for twice.
    assert again.memory.hits == 0
    # The policy may answer with anything, but the answer for keeps is the fastest measured.
    action, _ = loaded.predict(again.reset()[0], deterministic=True)
    _, _, _, _, info = again.step(action)
    assert info["seconds"] == again.summary.best_seconds
    sampled, _ = loaded.predict(np.zeros((3, 1), np.float32))
    assert sampled.shape == (3, 20)


@pytest.mark.parametrize(
    "switch",
    fast_are(
        ["planners", "practice"],
        ["planners", "calibrate", "discrepancy", "thompson", "neighbours", "practice"],
    ),
)
def test_every_part_can_be_left_out(switch: str) -> None:
    env = environment()
    agent = learn(env, 5, **{switch: False})
    assert env.memory.distinct == 5
    if switch == "practice":
        assert agent._n_updates == 0
    if switch == "planners":
        assert agent.recalibration(agent.get_env())._planned == []


@pytest.mark.slow
def test_the_search_ends_when_it_has_settled() -> None:
    env = environment()
    agent = QUICK.model_copy(update={"patience": 6}).build(env, seed=0)
    agent.learn(10_000)
    assert 6 < env.memory.distinct < 100


def test_two_stages_on_every_accelerator_are_measured_and_kept(tmp_path: Path) -> None:
    """The search proposes them; the policy, which cannot draw them, learns from all others."""
    path = tmp_path / "measurements.jsonl"
    method = Method(schedule="1f1b-flush", policy="sync", microbatches=8)

    def environment() -> PlacementEnv:
        # Gradients are dear to sum, and messages cost little: ZB-V is the fastest.
        _, profile = chain_of(seconds=[3] * 16, parameter_bytes=[10**6] * 16, output_bytes=[1] * 16)
        cluster = local_cluster(4, Link(bandwidth_bytes_per_second=1e6))
        space = Space(method, frozenset({Vary.SCHEDULE}))
        declared = CostPrior.of(profile, cluster, method, space=space)
        measurer = SimulatedCluster(profile, cluster, method=method)
        return PlacementEnv(MeasurementMemory(measurer, 30, path), declared=declared)

    env = environment()
    agent = learn(env, 7)
    folded = [found for found in env.outcomes if found.placement.is_folded]
    assert folded
    assert all(found.method.schedule == "zb-v" for found in folded)
    assert all(isinstance(env.outcomes[found], Measurement) for found in folded)
    best = env.memory.best()
    assert best is not None
    assert best[0] in folded
    assert agent._n_updates > 0
    elites = agent._choose_elites()
    assert len(elites) == min(agent.elites, len(env.outcomes) - len(folded))
    # The answer for keeps, and what a file of measurements gives back.
    action, _ = agent.predict(env.reset()[0], deterministic=True)
    assert env.codec.decode(action) == best[0]
    assert environment().outcomes == env.outcomes


@pytest.mark.parametrize("give_up", [1.02, 0.0])
def test_what_is_far_slower_than_the_fastest_is_not_run_again(give_up: float) -> None:
    profile, measurer = problem()
    declared = CostPrior.of(profile, local_cluster(4, LINK))
    env = PlacementEnv(MeasurementMemory(measurer, 30, repetitions=3), declared=declared)
    runs: list[tuple[float, float, bool]] = []

    def note(_: Candidate, outcome: Outcome) -> None:
        fastest = min((before for before, *_ in runs), default=math.inf)
        assert isinstance(outcome, Measurement)
        runs.append((outcome.seconds_per_minibatch, fastest, outcome.cut_short))

    env.memory.observers.append(note)
    learn(env, 6, give_up=give_up, practice=False)
    assert any(cut_short for *_, cut_short in runs) == bool(give_up)
    for own, fastest, cut_short in runs:
        assert cut_short == (own > give_up * fastest > 0)
    # In the simulator runs do not differ.
    count = {False: 3, True: 1}
    outcomes = [one for one in env.outcomes.values() if isinstance(one, Measurement)]
    assert len(runs) == sum(count[one.cut_short] for one in outcomes)


def test_several_environments_take_turns() -> None:
    envs = DummyVecEnv([environment, environment])
    agent = QUICK.build(envs, seed=0)
    agent.learn(8)
    one, other = envs.get_attr("outcomes")
    assert len(one) == len(other) == 4
    assert not set(one) & set(other)
    assert agent.num_timesteps == 8


class FailingCluster(SimulatedCluster):
    """Whatever has more than two stages loses a worker."""

    def measure(
        self, placement: Placement | Candidate | ExecutionPlan, minibatches: int = 30
    ) -> Outcome:
        assert isinstance(placement, ExecutionPlan)
        if len(placement.placement.stages) > 2:
            return FailedMeasurement(failure="worker lost", reason="worker 2 is gone")
        return super().measure(placement, minibatches)


@pytest.mark.slow
def test_placements_that_fail_are_learned_from() -> None:
    profile, measurer = problem()
    failing = FailingCluster(profile, measurer.cluster)
    env = PlacementEnv(MeasurementMemory(failing), declared=CostPrior.of(profile, measurer.cluster))
    learn(env, 30)
    best = env.memory.best()
    assert best is not None
    assert len(best[0].placement.stages) <= 2
    # It does not go on with what never works.
    outcomes = list(env.outcomes.values())
    assert sum(isinstance(o, FailedMeasurement) for o in outcomes[20:]) <= 6


def test_evaluation_and_the_environment_without_a_declaration(tmp_path: Path) -> None:
    _, measurer = problem()
    env = PlacementEnv(MeasurementMemory(measurer))
    agent = QUICK.build(env, seed=0)
    evaluation = EvalCallback(
        environment(), n_eval_episodes=1, eval_freq=5, best_model_save_path=str(tmp_path), verbose=0
    )
    agent.learn(6, evaluation)
    assert np.isfinite(evaluation.best_mean_reward)
    assert (tmp_path / "best_model.zip").exists()


def test_the_shipped_agent_starts_from_the_shipped_weights_and_goes_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert AGENTS["guided"] == GuidedHyperparameters()
    assert AGENTS["guided-policy"] == GuidedHyperparameters(practice=True)
    agent = AGENTS["guided-policy"].build(environment(), seed=0)
    with safe_open(PRETRAINED, framework="pt") as file:
        for name, value in agent.policy.network.state_dict().items():
            assert torch.equal(value, file.get_tensor(name))
    agent.save(tmp_path / "agent.zip")
    monkeypatch.setattr("drlpp.agents.transfer.transfer_policy.load_weights", None)
    loaded = GuidedDRLPP.load(tmp_path / "agent.zip", env=environment())
    assert isinstance(loaded.policy, type(agent.policy))


def test_a_run_is_resumed_by_the_same_agent(tmp_path: Path) -> None:
    sure: list[Sureness] = []
    for budget in (4, 6):
        memory = environment(tmp_path / "measurements.jsonl").memory
        done = learn_placement(
            memory,
            tmp_path,
            hyperparameters=QUICK,
            budget=budget,
            seed=0,
            console=Console(quiet=True),
            on_sure=sure.append,
        )
        assert done
        assert memory.distinct == budget
    assert len(sure) == 2
    loaded = GuidedDRLPP.load(tmp_path / "agent.zip")
    assert loaded.search == Options(evaluations=20, draws=2, gain=0)
    assert loaded.num_timesteps == 6
