"""The guided agent on simulated clusters that are declared wrongly."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlpp.agents import AGENTS, GuidedHyperparameters, learn_placement
from drlpp.costs.profile import Profile
from drlpp.costs.synthetic_profiles import generate
from drlpp.envs import CostPrior, MeasurementMemory
from drlpp.envs.measuring.search_file import Confidence
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster

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
