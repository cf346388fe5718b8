"""The table of in-flight depths, with fewer rows."""

import pytest

from benchmarks.in_flight import simulated as in_flight_depth
from benchmarks.in_flight.simulated import compare, table_of


def test_rows_name_the_depth_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_depth, "BITS_PER_SECOND", (1e9, 1e12))
    vgg, vgg_fast, *others = compare()
    assert [row.model for row in (vgg, vgg_fast, *others)] == ["VGG-16"] * 2 + ["made up"] * 2
    assert vgg.depths[0].in_flight == (4, 3, 2, 1)
    assert vgg.chosen > 0
    assert vgg_fast.chosen == 0
    for row in (vgg, vgg_fast, *others):
        noam, enough = row.depths[0], row.depths[row.chosen]
        assert enough.seconds_per_minibatch <= noam.seconds_per_minibatch
        assert enough.seconds_per_minibatch >= 0.99 * row.rule_seconds
    table = table_of([vgg, vgg_fast, *others])
    assert table.notna().all(axis=None)
    assert table["links"][0] == "1 Gbit/s"
    assert table["enough"][0] == "1 (7-5-3-1)"
