"""A memory for those accelerators that are there, with a file about all that there ever were."""

from pathlib import Path

import pytest

from drlpp.envs import MeasurementMemory, PartMeasurer
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.placement.measurements_file import read_measurements
from drlpp.placement.placement import Placement
from drlpp.placement.renumbering import Renumbering
from tests.support.planning.fake_measurer import FakeMeasurer, chain, of

GRAPH = chain(6)
HALVES = Placement.from_assignment([0, 0, 0, 1, 1, 1], [0, 1])
ONE = Placement.from_assignment([0] * 6, [0])
LEFT = Renumbering((1, 3), 4)


def part_of(measurer: FakeMeasurer, path: Path, part: Renumbering = LEFT) -> MeasurementMemory:
    """A memory whose measurer has the accelerators of the file as its own numbers say."""
    return MeasurementMemory(PartMeasurer(measurer, part), path=path, part=part)


def test_what_was_measured_on_these_counts_and_the_rest_is_kept(tmp_path: Path) -> None:
    path, measurer = tmp_path / "measurements.jsonl", FakeMeasurer(GRAPH)
    whole = MeasurementMemory(measurer, path=path)
    for accelerators in ([0, 1], [1, 3], [3, 2]):
        whole.measure(HALVES.on(accelerators))
    part = part_of(measurer, path)
    assert part.accelerators == 2
    assert list(part.outcomes) == [of(HALVES)]
    assert part.distinct == 3
    assert [candidate for candidate, _ in part.measured_elsewhere] == [
        of(HALVES.on([0, 1])),
        of(HALVES.on([3, 2])),
    ]
    assert part.measure(HALVES)[1]
    outcome, known = part.measure(ONE.on([1]))
    assert not known
    assert measurer.measured[-1] == ONE.on([3])
    assert part.distinct == 4
    assert part.best() is not None

    again = MeasurementMemory(measurer, path=path)
    assert again.measure(ONE.on([3])) == (outcome, True)
    assert (again.distinct, again.measured_elsewhere) == (4, [])


def test_who_is_not_there_is_not_measured_on(tmp_path: Path) -> None:
    memory = part_of(FakeMeasurer(GRAPH), tmp_path / "measurements.jsonl")
    with pytest.raises(InvalidInput, match="names accelerator 2, but there are only 0 to 1"):
        memory.measure(ONE.on([2]))


def test_a_file_is_of_those_that_have_joined_too(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    MeasurementMemory(FakeMeasurer(GRAPH, 2), path=path).measure(HALVES)
    with pytest.raises(InvalidFile, match="was measured with 2 accelerators, but this run has 4"):
        MeasurementMemory(FakeMeasurer(GRAPH, 4), path=path)
    grown = part_of(FakeMeasurer(GRAPH, 4), path, Renumbering.none(4))
    assert list(grown.outcomes) == [of(HALVES)]
    assert read_measurements(path)[0].accelerators == 4
    grown.measure(HALVES.on([2, 3]))
    assert MeasurementMemory(FakeMeasurer(GRAPH, 4), path=path).distinct == 2
    with pytest.raises(InvalidFile, match="was measured with 4 accelerators, but this run has 2"):
        part_of(FakeMeasurer(GRAPH, 2), path, Renumbering.none(2))
