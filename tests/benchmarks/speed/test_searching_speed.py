"""The benchmark of the search, at its smallest."""

from benchmarks.speed.searching import timed


def test_a_row_says_what_was_searched() -> None:
    row = timed(4, 40)
    assert row["accelerators"] == "4"
    # The starts and what follows, equal ones once; the last climb may look at a few more.
    assert 40 <= int(row["candidates"]) < 80
    assert 0 < int(row["of them simulated"]) <= int(row["candidates"])
    assert float(row["candidates in a second"]) > 0
