"""Placements that are measured together take turns, and count with the median of their runs."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv

from drlpp.agents import AGENTS, MeasurementBudgetCallback
from drlpp.cli.showing.tables import describe_measurements
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from tests.support.planning.fake_measurer import FakeMeasurer, chain, of

WHOLE = Placement.from_assignment([0] * 6, [0] * 4)
HALVES = Placement.from_assignment([0, 0, 0, 1, 1, 1], [0, 0, 1, 1])
UNEVEN = Placement.from_assignment([0, 1, 1, 1, 1, 1], [0, 1, 1, 1])
THREE = [WHOLE, HALVES, UNEVEN]
LOST = FailedMeasurement(failure="worker lost twice", reason="worker 2 was killed")


class Killed(BaseException):
    """What ends the program in the middle of a batch."""


class NoisyMeasurer(FakeMeasurer):
    """Gives a placement other seconds in every run; dies instead of starting run ``dies_at``."""

    def __init__(
        self,
        seconds: dict[Placement, Sequence[float]],
        dies_at: int = -1,
        fails_at: dict[Placement, int] | None = None,
    ) -> None:
        super().__init__(chain(6))
        self.runs = {placement: list(values) for placement, values in seconds.items()}
        self.dies_at = dies_at
        self.fails_at = fails_at or {}
        self.minibatches: list[int] = []

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        placement = plan.placement
        if len(self.measured) == self.dies_at:
            raise Killed
        outcome = super().measure(plan, minibatches)
        assert isinstance(outcome, Measurement)
        self.minibatches.append(minibatches)
        if self.measured.count(placement) - 1 == self.fails_at.get(placement):
            return LOST
        seconds = self.runs[placement].pop(0)
        return outcome.model_copy(update={"seconds_per_minibatch": seconds})


SECONDS = {WHOLE: [3.0, 1.0, 2.0], HALVES: [4.0, 6.0, 5.0], UNEVEN: [9.0, 8.0, 7.0]}
MEDIANS = {WHOLE: 2.0, HALVES: 5.0, UNEVEN: 8.0}


def seconds_in(memory: MeasurementMemory) -> dict[Placement, float]:
    return {
        candidate.placement: outcome.seconds_per_minibatch
        for candidate, outcome in memory.outcomes.items()
        if isinstance(outcome, Measurement)
    }


def test_runs_go_there_and_back_and_the_median_counts() -> None:
    measurer = NoisyMeasurer(SECONDS)
    memory = MeasurementMemory(measurer, minibatches=10, repetitions=3)
    memory.measure_together([*THREE, HALVES])
    assert measurer.measured == [*THREE, *THREE[::-1], *THREE]
    assert measurer.minibatches == [4] * 9
    assert seconds_in(memory) == MEDIANS
    assert memory.best() == (of(WHOLE), memory.outcomes[of(WHOLE)])
    assert [candidate for candidate, _ in memory.fastest(2)] == [of(WHOLE), of(HALVES)]
    # What was measured ahead is new to who asks for it, once.
    assert memory.measure(HALVES) == (memory.outcomes[of(HALVES)], False)
    assert memory.measure(HALVES) == (memory.outcomes[of(HALVES)], True)
    assert (memory.distinct, memory.hits) == (3, 1)
    assert len(measurer.measured) == 9


def test_a_placement_alone_is_measured_as_often() -> None:
    measurer = NoisyMeasurer(SECONDS)
    memory = MeasurementMemory(measurer, minibatches=9, repetitions=3)
    outcome, remembered = memory.measure(HALVES)
    assert isinstance(outcome, Measurement)
    assert (outcome.seconds_per_minibatch, remembered) == (5.0, False)
    assert measurer.measured == [HALVES] * 3
    assert measurer.minibatches == [3] * 3
    memory.measure_together(THREE)
    assert measurer.measured[3:] == [WHOLE, UNEVEN, UNEVEN, WHOLE, WHOLE, UNEVEN]


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=7))
def test_the_outcome_is_a_run_in_the_middle(values: list[float]) -> None:
    memory = MeasurementMemory(NoisyMeasurer({WHOLE: values}), repetitions=len(values))
    outcome, _ = memory.measure(WHOLE)
    assert isinstance(outcome, Measurement)
    assert outcome.seconds_per_minibatch == statistics.median_high(values)


def test_what_fails_once_is_not_run_again() -> None:
    measurer = NoisyMeasurer(SECONDS, fails_at={HALVES: 1})
    memory = MeasurementMemory(measurer, repetitions=3)
    memory.measure_together(THREE)
    assert measurer.measured == [*THREE, *THREE[::-1], WHOLE, UNEVEN]
    assert memory.outcomes[of(HALVES)] == LOST
    assert memory.measure(HALVES) == (LOST, False)
    assert (memory.distinct, memory.failed) == (3, 1)
    assert of(HALVES) not in dict(memory.fastest(3))


@pytest.mark.parametrize("dies_at", range(9))
def test_a_killed_run_goes_on_with_the_missing_runs(tmp_path: Path, dies_at: int) -> None:
    path = tmp_path / "measurements.jsonl"
    seconds = {placement: list(values) for placement, values in SECONDS.items()}
    dying = NoisyMeasurer(seconds, dies_at=dies_at)
    with pytest.raises(Killed):
        MeasurementMemory(dying, path=path, repetitions=3).measure_together(THREE)
    assert len(path.read_text().splitlines()) == 1 + dies_at
    measurer = NoisyMeasurer(dying.runs)
    memory = MeasurementMemory(measurer, path=path, repetitions=3)
    assert memory.distinct == max(dies_at - 6, 0)
    memory.measure_together(THREE)
    assert dying.measured + measurer.measured == [*THREE, *THREE[::-1], *THREE]
    assert seconds_in(memory) == MEDIANS
    assert seconds_in(MeasurementMemory(NoisyMeasurer({}), path=path, repetitions=3)) == MEDIANS


def test_a_file_with_one_run_of_each_placement_is_read(tmp_path: Path) -> None:
    """As version 1 wrote it, which knew no repetitions."""
    path = tmp_path / "measurements.jsonl"
    MeasurementMemory(NoisyMeasurer(SECONDS), path=path).measure_together(THREE)
    header, *lines = path.read_text().splitlines()
    old = {k: v for k, v in json.loads(header).items() if k != "repetitions"} | {"version": 1}
    path.write_text("\n".join([json.dumps(old), *lines]) + "\n")
    memory = MeasurementMemory(NoisyMeasurer({}), path=path)
    assert seconds_in(memory) == {WHOLE: 3.0, HALVES: 4.0, UNEVEN: 9.0}
    assert "3 placements" in str(describe_measurements(path).renderables[-1])  # type: ignore
    with pytest.raises(InvalidFile, match="with 1 repetitions, but this run has 3; use 1"):
        MeasurementMemory(NoisyMeasurer({}), path=path, repetitions=3)


def test_a_file_with_several_runs_is_described_by_their_medians(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    measurer = NoisyMeasurer(SECONDS, fails_at={HALVES: 2})
    MeasurementMemory(measurer, path=path, repetitions=3).measure_together(THREE)
    table, summary, reason = describe_measurements(path).renderables  # type: ignore
    assert list(table.columns[0].cells) == ["2.00 s", "8.00 s"]
    assert summary == "3 placements, 1 failed"
    assert "worker 2 was killed" in reason


def test_at_least_one_repetition() -> None:
    with pytest.raises(InvalidInput, match="repetitions is 0"):
        MeasurementMemory(FakeMeasurer(chain(6)), repetitions=0)


class PickyMeasurer(FakeMeasurer):
    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        if plan.placement.configuration == "2-2":
            raise InvalidInput("the method cannot run this")
        return super().measure(plan, minibatches)


def actions(*placements: Placement) -> np.ndarray:
    return np.array(
        [
            [
                *placement.stage_of_operator(6),
                *(
                    next(k for k, stage in enumerate(placement.stages) if a in stage.accelerators)
                    for a in range(4)
                ),
            ]
            for placement in placements
        ]
    )


def test_an_environment_measures_ahead_what_is_valid() -> None:
    measurer = PickyMeasurer(chain(6))
    env = PlacementEnv(MeasurementMemory(measurer, repetitions=2))
    cyclic = [1, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    batch = np.vstack([actions(WHOLE, HALVES, UNEVEN), cyclic])
    env.prefetch(batch)
    assert measurer.measured == [WHOLE, UNEVEN, UNEVEN, WHOLE]
    errors = [env.step(action)[4].get("error_type") for action in batch]
    assert errors == [None, "invalid placement", None, "invalid placement"]
    assert len(measurer.measured) == 4
    assert env.summary.hits == 0


def test_nothing_is_measured_ahead_with_one_repetition_or_above_the_budget() -> None:
    measurer = FakeMeasurer(chain(6))
    PlacementEnv(MeasurementMemory(measurer)).prefetch(actions(*THREE))
    assert measurer.measured == []
    memory = MeasurementMemory(measurer, repetitions=2)
    env = PlacementEnv(memory, budget=2)
    env.prefetch(actions(WHOLE))
    env.prefetch(actions(WHOLE, HALVES, UNEVEN))
    assert list(memory.outcomes) == [of(WHOLE), of(HALVES)]
    env.prefetch(actions(UNEVEN))
    assert memory.distinct == 2


def test_an_agents_rollout_is_measured_in_turns_within_the_budget() -> None:
    measurer = FakeMeasurer(chain(10))
    memory = MeasurementMemory(measurer, repetitions=3)
    seen: list[Placement] = []
    memory.observers.append(lambda candidate, outcome: seen.append(candidate.placement))
    agent = AGENTS["tuned"].build(PlacementEnv(memory, budget=13), seed=0)
    agent.learn(10_000, MeasurementBudgetCallback(memory, budget=13))
    assert memory.distinct == 13
    assert len(measurer.measured) == 3 * 13
    assert seen == measurer.measured
    first = list(dict.fromkeys(measurer.measured[:8]))
    assert measurer.measured[: 3 * len(first)] == [*first, *first[::-1], *first]


def test_every_environment_measures_its_own_share_ahead() -> None:
    measurers = [FakeMeasurer(chain(6)) for _ in range(2)]
    memories = [MeasurementMemory(measurer, repetitions=2) for measurer in measurers]
    env = DummyVecEnv([lambda memory=memory: PlacementEnv(memory) for memory in memories])
    agent = AGENTS["tuned"].build(env, seed=0)
    agent.learn(8)
    rollout = [
        Placement.from_assignment(
            list(rewarded.trajectory.action[:6]), list(rewarded.trajectory.action[6:])
        )
        for rewarded in agent.rollout_buffer.content
    ]
    for index, (memory, measurer) in enumerate(zip(memories, measurers, strict=True)):
        assert set(memory.outcomes) == set(map(of, rollout[index::2]))
        assert len(measurer.measured) == 2 * memory.distinct
