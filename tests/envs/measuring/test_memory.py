"""Every distinct placement is measured once, and the file survives a kill."""

import json
from pathlib import Path

import pytest

from drlpp.envs import MeasurementMemory
from drlpp.envs.measuring.search_file import Confidence, SearchFile
from drlpp.errors import InvalidFile
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from tests.support.planning.fake_measurer import FakeMeasurer, chain, graph_of, of

WHOLE = Placement.from_assignment([0] * 6, [0] * 4)
HALVES = Placement.from_assignment([0, 0, 0, 1, 1, 1], [0, 0, 1, 1])
UNEVEN = Placement.from_assignment([0, 1, 1, 1, 1, 1], [0, 1, 1, 1])
LOST = FailedMeasurement(failure="worker lost twice", reason="worker 2 was killed")


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


def test_failures_are_remembered_and_never_the_best() -> None:
    measurer = FakeMeasurer(chain(6), failures={"4": LOST})
    memory = MeasurementMemory(measurer)
    assert memory.measure(WHOLE) == memory.measure(WHOLE) == LOST
    assert memory.best() is None
    outcome = memory.measure(HALVES)
    assert memory.best() == (of(HALVES), outcome)
    assert memory.summary[:2] == (2, 1)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "measurements.jsonl"
    memory = MeasurementMemory(FakeMeasurer(chain(6), failures={"4": LOST}), path=path)
    for placement in (WHOLE, HALVES, UNEVEN):
        memory.measure(placement)
    return path


@pytest.mark.parametrize("failure", ["worker lost", "timeout"])
def test_what_a_placement_may_not_be_to_blame_for_counts_the_second_time(
    tmp_path: Path, failure: str
) -> None:
    """A worker that an older drlpp lost once, and a silence: the machine may have been frozen."""
    path = tmp_path / "measurements.jsonl"
    outcome = FailedMeasurement(failure=failure, reason="workers [1] did not answer")
    for failed_before in range(4):
        measurer = FakeMeasurer(chain(6), failures={"4": outcome})
        memory = MeasurementMemory(measurer, path=path)
        assert memory.summary.failed == memory.distinct == (failed_before > 1)
        # Within a run a silence is waited for once.
        for _ in range(2):
            assert memory.measure(WHOLE) == outcome
        assert measurer.measured == [WHOLE] * (failed_before < 2)
    assert len(path.read_text().splitlines()) == 3


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


SURE = Confidence(
    configuration="3-1", method=Method(in_flight_per_link=1), share=0.88, expected_gain=0.004
)
PART = SearchFile(
    placements=8, seconds=20.0, cluster_seconds=12.0, deploying_seconds=3.0, confidence=SURE
)


def test_parts_of_a_run_add_up_and_the_last_word_counts() -> None:
    interrupted = SearchFile(
        placements=2, seconds=5.0, cluster_seconds=4.0, deploying_seconds=0.5, confidence=None
    )
    assert PART.after(interrupted) == SearchFile(
        placements=10, seconds=25.0, cluster_seconds=16.0, deploying_seconds=3.5, confidence=SURE
    )
    assert interrupted.after(PART).confidence is None, "it goes on, and was not asked again"
