"""Placements are measured in turns with others, once, in a file that survives a kill."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from drlpp.agents import Hyperparameters, MeasurementBudgetCallback
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from tests.support.planning.fake_measurer import FakeMeasurer, chain, graph_of, of

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
    memory.per_second = lambda candidate: 3.0 if candidate.placement == WHOLE else 1.0
    assert [candidate for candidate, _ in memory.fastest(2)] == [of(HALVES), of(WHOLE)]
    assert memory.measure(HALVES) == memory.outcomes[of(HALVES)]
    assert memory.distinct == 3
    assert len(measurer.measured) == 9


def test_what_fails_once_is_not_run_again() -> None:
    measurer = NoisyMeasurer(SECONDS, fails_at={HALVES: 1})
    memory = MeasurementMemory(measurer, repetitions=3)
    memory.measure_together(THREE)
    assert measurer.measured == [*THREE, *THREE[::-1], WHOLE, UNEVEN]
    assert memory.outcomes[of(HALVES)] == LOST
    assert memory.measure(HALVES) == LOST
    assert memory.summary[:2] == (3, 1)
    assert of(HALVES) not in dict(memory.fastest(3))


@pytest.mark.parametrize("dies_at", [0, 4, 8])
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


class PickyMeasurer(FakeMeasurer):
    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        if plan.placement.configuration == "2-2":
            raise InvalidInput("the method cannot run this")
        return super().measure(plan, minibatches)


def test_an_environment_measures_ahead_what_is_valid() -> None:
    measurer = PickyMeasurer(chain(6))
    env = PlacementEnv(MeasurementMemory(measurer, repetitions=2))
    batch = np.array(
        [
            [0] * 10,
            [0, 0, 0, 1, 1, 1, 0, 0, 1, 1],
            [0, 1, 1, 1, 1, 1, 0, 1, 1, 1],
            [1, 0, 0, 0, 0, 0, 0, 0, 1, 1],
        ]
    )
    env.prefetch(batch)
    assert measurer.measured == [WHOLE, UNEVEN, UNEVEN, WHOLE]
    errors = [env.step(action)[4].get("error_type") for action in batch]
    assert errors == [None, "invalid placement", None, "invalid placement"]
    assert len(measurer.measured) == 4


def test_an_agents_rollout_is_measured_in_turns_within_the_budget() -> None:
    measurer = FakeMeasurer(chain(10))
    memory = MeasurementMemory(measurer, repetitions=3)
    seen: list[Placement] = []
    memory.observers.append(lambda candidate, outcome: seen.append(candidate.placement))
    small = Hyperparameters(partitions_per_rollout=4, placements_per_partition=2, feasible=True)
    agent = small.build(PlacementEnv(memory, budget=13), seed=0)
    agent.learn(10_000, MeasurementBudgetCallback(memory, budget=13))
    assert memory.distinct == 13
    assert len(measurer.measured) == 3 * 13
    assert seen == measurer.measured
    first = list(dict.fromkeys(measurer.measured[:8]))
    assert measurer.measured[: 3 * len(first)] == [*first, *first[::-1], *first]


CUTS = [
    Placement.from_assignment([0] * cut + [1] * (6 - cut), [0] * first + [1] * (4 - first))
    for cut, first in product(range(1, 6), range(1, 4))
]
FAST, SLOW, SLOWER = WHOLE, *CUTS[:2]
RUNS = {FAST: [1.0, 1.1, 0.9], SLOW: [1.4, 1.6, 1.6], SLOWER: [2.0, 2.0, 2.0]}


def measured(
    measurer: NoisyMeasurer, path: Path | None = None, limit: float | None = 1.5
) -> MeasurementMemory:
    memory = MeasurementMemory(measurer, path=path, repetitions=3)
    memory.limit_seconds = limit
    memory.measure_together(RUNS)
    return memory


def test_runs_end_where_all_so_far_were_slower_than_the_limit() -> None:
    measurer = NoisyMeasurer(RUNS)
    memory = measured(measurer)
    assert [measurer.measured.count(p) for p in RUNS] == [3, 3, 1]
    outcome = memory.outcomes[of(SLOWER)]
    assert isinstance(outcome, Measurement)
    assert outcome.cut_short
    assert outcome.seconds_per_minibatch == 2.0
    others = [memory.outcomes[of(placement)] for placement in (FAST, SLOW)]
    assert not any(isinstance(one, Measurement) and one.cut_short for one in others)
    # Asked for again, it is remembered.
    memory.limit_seconds = None
    assert memory.measure(SLOWER) is outcome
    assert len(measurer.measured) == 7


@pytest.mark.parametrize("dies_after", [0, 3, 7])
def test_a_file_goes_on_with_what_was_cut_short(tmp_path: Path, dies_after: int) -> None:
    path = tmp_path / "measurements.jsonl"
    whole = measured(NoisyMeasurer(RUNS), path)
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 7
    path.write_text("".join(lines[: 1 + dies_after]))
    left = {placement: list(values) for placement, values in RUNS.items()}
    for placement in [FAST, SLOW, SLOWER, SLOW, FAST, FAST, SLOW][:dies_after]:
        left[placement].pop(0)
    again = measured(NoisyMeasurer(left), path)
    assert dict(again.outcomes) == dict(whole.outcomes)
    assert path.read_text().splitlines(keepends=True) == lines


def test_a_placement_is_measured_once_however_its_operators_are_listed() -> None:
    measurer = FakeMeasurer(chain(6))
    memory = MeasurementMemory(measurer, minibatches=5)
    first = memory.measure(HALVES)
    assert isinstance(first, Measurement)
    assert first.minibatches == 5
    reversed_stages = tuple(
        stage.model_copy(update={"operators": stage.operators[::-1]}) for stage in HALVES.stages
    )
    assert memory.measure(Placement(stages=reversed_stages)) == first
    assert measurer.measured == [HALVES]
    assert memory.summary == (1, 0, first.seconds_per_minibatch)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "measurements.jsonl"
    memory = MeasurementMemory(FakeMeasurer(chain(6), failures={"4": LOST}), path=path)
    for placement in (WHOLE, HALVES, UNEVEN):
        memory.measure(placement)
    return path


@pytest.mark.parametrize("failure", ["worker lost", "timeout"])
def test_what_a_placement_may_not_be_to_blame_for_is_measured_again_by_another_run(
    tmp_path: Path, failure: str
) -> None:
    """A worker that an older drlpp lost once, and a silence: the machine may have been frozen."""
    path = tmp_path / "measurements.jsonl"
    outcome = FailedMeasurement(failure=failure, reason="workers [1] did not answer")
    for _ in range(2):
        measurer = FakeMeasurer(chain(6), failures={"4": outcome})
        memory = MeasurementMemory(measurer, path=path)
        assert memory.distinct == 0
        # Within a run a silence is waited for once.
        for _ in range(2):
            assert memory.measure(WHOLE) == outcome
        assert measurer.measured == [WHOLE]


@pytest.mark.parametrize("lost_bytes", [1, 20])
def test_a_half_written_last_line_is_dropped(written: Path, lost_bytes: int) -> None:
    written.write_bytes(written.read_bytes()[:-lost_bytes])
    measurer = FakeMeasurer(chain(6))
    memory = MeasurementMemory(measurer, path=written)
    assert memory.distinct == 2
    memory.measure(UNEVEN)
    assert measurer.measured == [UNEVEN]
    assert MeasurementMemory(FakeMeasurer(chain(6)), path=written).distinct == 3


def test_a_kill_while_the_header_was_written_leaves_a_usable_file(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    path.write_text('{"kind":"meas')
    MeasurementMemory(FakeMeasurer(chain(6)), path=path).measure(HALVES)
    assert MeasurementMemory(FakeMeasurer(chain(6)), path=path).distinct == 1


def test_a_file_of_another_run_is_refused(written: Path) -> None:
    before = written.read_bytes()
    with pytest.raises(InvalidFile, match="but the graph is"):
        MeasurementMemory(FakeMeasurer(graph_of(6, [(0, 5)])), path=written)
    with pytest.raises(InvalidFile, match="use 4"):
        MeasurementMemory(FakeMeasurer(chain(6), accelerators=2), path=written)
    with pytest.raises(InvalidFile, match="use 30"):
        MeasurementMemory(FakeMeasurer(chain(6)), minibatches=10, path=written)
    assert written.read_bytes() == before


def test_damage_is_named_by_its_line(written: Path) -> None:
    lines = written.read_text().splitlines()
    written.write_text("\n".join([*lines[:2], "{}", *lines[3:]]) + "\n")
    with pytest.raises(InvalidFile, match="line 3"):
        MeasurementMemory(FakeMeasurer(chain(6)), path=written)


def test_other_and_newer_files_are_refused(tmp_path: Path, written: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello\n")
    with pytest.raises(InvalidFile, match="line 1"):
        MeasurementMemory(FakeMeasurer(chain(6)), path=other)
    header, *rest = written.read_text().splitlines()
    newer = json.dumps({**json.loads(header), "version": 4})
    written.write_text("\n".join([newer, *rest]) + "\n")
    with pytest.raises(InvalidFile, match="newer drlpp"):
        MeasurementMemory(FakeMeasurer(chain(6)), path=written)


def test_a_placement_that_cannot_be_is_told(tmp_path: Path) -> None:
    """Somebody has edited the file: no planner may ever see such an accelerator."""
    path = tmp_path / "m.jsonl"
    memory = MeasurementMemory(FakeMeasurer(chain(4), accelerators=2), path=path)
    memory.measure(Placement.from_assignment([0, 0, 1, 1], (0, 1)))
    path.write_text(path.read_text().replace('"accelerators":[1]', '"accelerators":[10000000000]'))
    with pytest.raises(InvalidFile, match=r"m\.jsonl: a placement in it cannot be: .*10000000000"):
        MeasurementMemory(FakeMeasurer(chain(4), accelerators=2), path=path)
