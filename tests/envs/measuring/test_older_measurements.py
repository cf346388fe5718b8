"""Files of measurements that a drlpp of before methods were recorded has written."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from drlpp.cli.showing.tables import describe_measurements
from drlpp.envs import MeasurementMemory
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from tests.support.planning.fake_measurer import FakeMeasurer, chain, of

WHOLE = Placement.from_assignment([0] * 6, [0] * 4)
HALVES = Placement.from_assignment([0, 0, 0, 1, 1, 1], [0, 0, 1, 1])
FLUSHING = Method(schedule="gpipe", policy="sync", microbatches=2)

VERSION_2 = (
    '{"kind":"measurements","version":2,"model":"made-up","graph_fingerprint":"3c87788fbbfe4d4b",'
    '"accelerators":4,"minibatches":10,"repetitions":2}\n'
    '{"placement":{"stages":[{"operators":[0,1,2,3,4,5],"accelerators":[0,1,2,3]}]},"outcome":'
    '{"outcome":"failed","failure":"worker lost twice","reason":"worker 1 was killed"}}\n'
    + 2
    * (
        '{"placement":{"stages":[{"operators":[0,1,2],"accelerators":[0,1]},{"operators":[3,4,5],'
        '"accelerators":[2,3]}]},"outcome":{"outcome":"measured","seconds_per_minibatch":'
        '0.01183147939305551,"median_seconds":0.01183147939305551,"standard_deviation_seconds":0.0,'
        '"minibatches":5,"workers":[],"links":[]}}\n'
    )
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "measurements.jsonl"
    path.write_text(VERSION_2)
    return path


def opened(path: Path, method: Method | None = None) -> tuple[MeasurementMemory, FakeMeasurer]:
    measurer = FakeMeasurer(chain(6))
    measurer.method = method or measurer.method
    return MeasurementMemory(measurer, minibatches=10, path=path, repetitions=2), measurer


def test_what_it_holds_ran_with_the_measurers_method(path: Path) -> None:
    memory, measurer = opened(path)
    lost = FailedMeasurement(failure="worker lost twice", reason="worker 1 was killed")
    assert list(memory.outcomes) == [of(WHOLE), of(HALVES)]
    assert memory.measure(WHOLE) == (lost, True)
    outcome, remembered = memory.measure(HALVES)
    assert isinstance(outcome, Measurement)
    assert (outcome.seconds_per_minibatch, remembered) == (0.01183147939305551, True)
    assert not measurer.measured
    # Nothing but new lines changes it as long as the method is the same.
    uneven = Placement.from_assignment([0, 1, 1, 1, 1, 1], [0, 1, 1, 1])
    memory.measure(uneven)
    assert path.read_text().startswith(VERSION_2)
    assert opened(path)[0].outcomes == memory.outcomes


def test_it_gets_a_method_before_another_one_is_in_it(path: Path) -> None:
    memory, _ = opened(path)
    memory.measure(Candidate(HALVES, FLUSHING))
    header, *entries = path.read_text().splitlines()
    assert entries[:3] == VERSION_2.splitlines()[1:]
    assert (json.loads(header)["version"], len(entries)) == (3, 5)
    assert opened(path)[0].outcomes == memory.outcomes
    assert list(memory.outcomes) == [of(WHOLE), of(HALVES), Candidate(HALVES, FLUSHING)]
    with io.StringIO() as text:
        Console(width=200, file=text).print(describe_measurements(path))
        assert str(FLUSHING) in text.getvalue()
