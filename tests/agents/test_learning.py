"""Learning in one call: budgets, Ctrl-C, agents that go on from their files; the guided agent."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import signal
import zipfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from rich.console import Console
from stable_baselines3.common.save_util import data_to_json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.made_up import generate
from drlpp.agents import (
    AGENTS,
    DRLPP,
    AtomicCheckpointCallback,
    GuidedHyperparameters,
    Hyperparameters,
    MeasurementBudgetCallback,
    learn_placement,
)
from drlpp.agents.callbacks import take_up
from drlpp.agents.imagining import ImaginingPolicy
from drlpp.costs.profile import Profile
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.envs.measuring.confidence import Confidence
from drlpp.envs.measuring.policy_curve import policy_curve
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners import Space, best_plan
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster
from tests.support.planning.fake_measurer import FakeMeasurer, branching, chain

SMALL = Hyperparameters(partitions_per_rollout=4, placements_per_partition=2, feasible=True)
QUIET: dict[str, Any] = {"seed": 0, "console": Console(quiet=True)}


def agent_and_memory(operators: int = 10, accelerators: int = 4) -> tuple[DRLPP, MeasurementMemory]:
    memory = MeasurementMemory(FakeMeasurer(chain(operators), accelerators))
    return SMALL.build(PlacementEnv(memory), seed=0), memory


def test_learning_stops_when_nothing_new_is_asked_for() -> None:
    agent, memory = agent_and_memory(operators=2, accelerators=1)
    agent.learn(10_000, callback=MeasurementBudgetCallback(memory, budget=100, patience=30))
    assert memory.distinct == 1
    assert agent.num_timesteps == 31


def test_a_kill_while_saving_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _ = agent_and_memory()
    path = tmp_path / "model.zip"
    agent.learn(8, callback=AtomicCheckpointCallback(path))
    before = path.read_bytes()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(8, callback=AtomicCheckpointCallback(path), reset_num_timesteps=False)
    assert path.read_bytes() == before


class Swallowing(FakeMeasurer):
    """Ctrl-C comes while something runs that ignores exceptions."""

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        if len(self.measured) == 3:
            with suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        return super().measure(plan, minibatches)


def test_ctrl_c_is_not_lost_where_the_exception_is(tmp_path: Path) -> None:
    memory = MeasurementMemory(Swallowing(chain(8)))
    before = signal.getsignal(signal.SIGINT)
    assert not learn_placement(memory, tmp_path, hyperparameters=SMALL, budget=30, **QUIET)
    assert 3 < memory.distinct < 30
    assert signal.getsignal(signal.SIGINT) == before


def test_a_model_of_one_operator_is_measured_on_every_number_of_workers(tmp_path: Path) -> None:
    memory = MeasurementMemory(FakeMeasurer(chain(1), 3))
    guided = GuidedHyperparameters(draws=2, evaluations=16)
    assert learn_placement(memory, tmp_path, hyperparameters=guided, budget=20, **QUIET)
    assert sorted(p.configuration for p in memory.outcomes) == ["1", "2", "3"]
    assert not ImaginingPolicy.can_place(memory.graph, 3), "there is nothing to divide"
    with pytest.raises(InvalidInput, match=r"one operator, .* take --agent guided"):
        learn_placement(memory, tmp_path, hyperparameters=SMALL, budget=20, **QUIET)


def test_an_agent_is_taken_up_with_what_it_has_learned(tmp_path: Path) -> None:
    agent, budget = SMALL, 12
    path, graph = tmp_path / "measurements.jsonl", branching(6)
    memory = MeasurementMemory(FakeMeasurer(graph, 3), path=path)
    assert learn_placement(memory, tmp_path, hyperparameters=agent, budget=budget, **QUIET)
    saved = DRLPP.load(tmp_path / "agent.zip")
    again = MeasurementMemory(FakeMeasurer(graph, 3), path=path)
    found = agent.build(PlacementEnv(again), seed=0)
    take_up(found, tmp_path / "agent.zip")
    for name, value in saved.policy.state_dict().items():
        assert torch.equal(found.policy.state_dict()[name], value), name
    states = [one.policy.optimizer.state_dict()["state"].values() for one in (saved, found)]
    steps = [[state["step"] for state in each] for each in states]
    assert steps[0] == steps[1] != []
    for name in ("num_timesteps", "baseline", "_n_updates"):
        assert getattr(found, name) == getattr(saved, name), name
    assert learn_placement(again, tmp_path, hyperparameters=agent, budget=budget + 1, **QUIET)
    assert again.distinct == budget + 1
    assert len(again.measurer.measured) == 1  # type: ignore[attr-defined]


class _Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch trapped",)


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    agent, _ = agent_and_memory()
    agent.save("agent.zip")
    return tmp_path / "agent.zip"


def rewritten(path: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        files = {file: archive.read(file) for file in archive.namelist()} | {name: content}
    with zipfile.ZipFile(path, "w") as archive:
        for file, value in files.items():
            archive.writestr(file, value)


@pytest.mark.parametrize("key", ["policy_class", "anything"])
def test_a_strangers_agent_runs_nothing(saved: Path, key: str) -> None:
    with zipfile.ZipFile(saved) as archive:
        data = json.loads(archive.read("data"))
    hostile = base64.b64encode(cloudpickle.dumps(_Calls())).decode()
    data[key] = {":type:": "x", ":serialized:": hostile}
    assert ":serialized:" in data_to_json({"it": _Calls()}), "as stable-baselines3 writes it"
    rewritten(saved, "data", json.dumps(data).encode())
    take_up(agent_and_memory()[0], saved)
    assert not Path("trapped").exists()


def test_what_is_no_agent_of_this_model_is_refused(saved: Path) -> None:
    with pytest.raises(InvalidFile, match=r"not a saved agent .*size mismatch.* delete it"):
        take_up(agent_and_memory(accelerators=3)[0], saved)
    content = io.BytesIO()
    torch.save(_Calls(), content)
    before = saved.read_bytes()
    for name, wrong in (("policy.pth", content.getvalue()), ("data", b'{"num_timesteps": "x"}')):
        saved.write_bytes(before)
        rewritten(saved, name, wrong)
        with pytest.raises(InvalidFile, match=r"not a saved agent .* delete it"):
            take_up(agent_and_memory()[0], saved)
    assert not Path("trapped").exists()


LINK = Link(bandwidth_bytes_per_second=2.5e8, latency_seconds=5e-5)
# Agents are told that all accelerators are equal.
TOLD, TRUE = local_cluster(3, LINK), local_cluster(3, LINK, (1.0, 1.0, 0.5))
# Without an end that is expected: tests count measurements.
QUICK = GuidedHyperparameters(evaluations=20, draws=2, gain=0)


def problem(operators: int = 10) -> tuple[Profile, SimulatedCluster]:
    profile = generate("layered", operators, 1)
    return profile, SimulatedCluster(profile, TRUE)


def learn(
    memory: MeasurementMemory, out: Path, budget: int, seed: int = 0, **changes: object
) -> Confidence:
    sure: list[Confidence] = []
    assert learn_placement(
        memory,
        out,
        hyperparameters=QUICK.model_copy(update=changes),
        budget=budget,
        seed=seed,
        declared=CostPrior.of(problem(len(memory.graph))[0], TOLD),
        console=Console(quiet=True),
        on_confidence=sure.append,
    )
    assert memory.distinct <= budget
    (one,) = sure
    return one


def seconds(outcome: Outcome) -> float:
    assert isinstance(outcome, Measurement)
    return outcome.seconds_per_minibatch


def test_a_run_is_repeated_by_its_seed(tmp_path: Path) -> None:
    runs = []
    for seed in (0, 0, 1):
        memory = MeasurementMemory(problem(7)[1])
        # The first few are planners' placements, whatever the seed.
        learn(memory, tmp_path, 4, seed, evaluations=8)
        runs.append(list(memory.outcomes))
    assert runs[0] == runs[1] != runs[2]


def test_a_resumed_run_knows_everything_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    before = MeasurementMemory(problem(7)[1], path=path)
    learn(before, tmp_path, 4)
    # Of a run by an older program.
    (tmp_path / "agent.zip").write_bytes(b"of an older program")
    memory = MeasurementMemory(problem(7)[1], path=path)
    learn(memory, tmp_path, 5)
    assert memory.distinct == 5
    assert list(memory.outcomes)[:4] == list(before.outcomes)
    (folder,) = (tmp_path / "tensorboard").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("placement/distinct")] == [0, 1, 2, 3, 4]
    assert {"placement/best_seconds", "placement/expected_gain"} <= set(events.Tags()["scalars"])


def test_what_is_far_slower_than_the_fastest_is_not_run_again(tmp_path: Path) -> None:
    memory, give_up = MeasurementMemory(problem(7)[1], repetitions=3), 1.02
    runs: list[tuple[float, float, bool]] = []

    def note(_: Candidate, outcome: Outcome) -> None:
        fastest = min((before for before, *_ in runs), default=math.inf)
        assert isinstance(outcome, Measurement)
        runs.append((outcome.seconds_per_minibatch, fastest, outcome.cut_short))

    memory.observers.append(note)
    learn(memory, tmp_path, 4, give_up=give_up)
    assert any(cut_short for *_, cut_short in runs)
    for own, fastest, cut_short in runs:
        assert cut_short == (own > give_up * fastest > 0)
    # In the simulator runs do not differ.
    count = {False: 3, True: 1}
    outcomes = [one for one in memory.outcomes.values() if isinstance(one, Measurement)]
    assert len(runs) == sum(count[one.cut_short] for one in outcomes)


def test_the_shipped_agent_is_the_default() -> None:
    assert AGENTS["guided"] == GuidedHyperparameters()


SLOW = Link(bandwidth_bytes_per_second=6e7, latency_seconds=5e-5)
WEAK = generate("layered", 20, 1), local_cluster(3, SLOW, (1.0, 0.8, 0.5))
DECLARED_RIGHTLY, EVENTS = CostPrior.of(*WEAK), "tensorboard/agent_0"


def learned_weakly(
    out: Path, budget: int, rollouts: int = 2
) -> tuple[list[tuple[str, Candidate]], list[str]]:
    """Learn with a weak search; return who found what was measured, and the lines at the end."""
    out.mkdir(exist_ok=True)
    memory = MeasurementMemory(SimulatedCluster(*WEAK), path=out / "measurements.jsonl")
    weak = GuidedHyperparameters(evaluations=1, draws=2, gain=0, policy_rollouts=rollouts)
    with (out / "log").open("w") as log:
        assert learn_placement(
            memory,
            out,
            hyperparameters=weak,
            budget=budget,
            seed=0,
            declared=DECLARED_RIGHTLY,
            console=Console(file=log, width=200),
        )
    measured = [(memory.found_by[one], one) for one in memory.outcomes]
    return measured, (out / "log").read_text().splitlines()


def test_what_a_policy_imagines_is_measured_if_it_is_best_and_else_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learned_with(guest: Candidate) -> tuple[list[tuple[str, Candidate]], list[str]]:
        monkeypatch.setattr(ImaginingPolicy, "propose", lambda *_: guest)
        return learned_weakly(tmp_path / guest.configuration, 5)

    without, _ = learned_weakly(tmp_path / "without", 5, rollouts=0)
    slow = Candidate(Placement.from_assignment([0] * 20, [1, 1, 0]), Method())
    assert learned_with(slow)[0] == without
    fast = best_plan(DECLARED_RIGHTLY.problem, Space(Method(), frozenset())).candidate
    found, said = learned_with(fast)
    assert ("policy", fast.canonical) in found
    assert said[-1] == "found by: search 3, planners 1, policy 1 of 5"


def test_by_the_same_measurements_a_policy_draws_the_same(tmp_path: Path) -> None:
    runs = []
    for name in ("one", "other"):
        before = torch.manual_seed(len(name)).get_state()
        found, _ = learned_weakly(tmp_path / name, 6)
        runs.append((found, policy_curve(tmp_path / name / EVENTS)))
        assert torch.equal(torch.get_rng_state(), before), "nor does it disturb others' draws"
    assert runs[0] == runs[1]
    assert len(curve := runs[0][1]) > 2
    assert all(math.exp(-mean_reward) >= own > 0 for _, mean_reward, own, _ in curve)


def test_a_run_that_resumes_knows_who_found_what(tmp_path: Path) -> None:
    found, _ = learned_weakly(tmp_path, 4)
    again, said = learned_weakly(tmp_path, 6)
    assert again[:4] == found
    counts = Counter(who.split()[0] for who, _ in again)
    search, planners, policy = (counts[who] for who in ("search", "planner", "policy"))
    assert search + planners + policy == 6
    assert planners > 0, "data parallelism"
    assert said[-1] == f"found by: search {search}, planners {planners}, policy {policy} of 6"
    events = EventAccumulator(str(tmp_path / EVENTS)).Reload()
    assert events.Scalars("found_by/planner")[-1].value == planners
