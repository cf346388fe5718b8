"""The benchmark of the simulator, at its smallest."""

import pytest

from benchmarks.speed import simulator as simulator_speed
from benchmarks.speed.simulator import table_of, time_simulation


def test_a_row_says_what_was_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator_speed, "_LEAST_SECONDS", 0.0)
    row = time_simulation(2, 2, 4)
    assert row.accelerators == 4
    # Until a period is found; each is a forward and a backward on two stages, and a message both
    # ways; each pair of them an all-reduce and an update on four workers. Stages may be in the
    # seventh such pair when the last of them has done six.
    assert row.minibatches == 12
    assert 12 * 2 * 2 + 6 * 2 * 4 < row.steps < 14 * 2 * 2 + 7 * 2 * 4
    assert row.messages == 14 * 2
    assert row.over_prediction >= 1 - 1e-9
    table = table_of([row])
    assert table["stages × replicas"][0] == "2 × 2"
    assert table["steps and messages"][0] == str(row.steps + 28)
