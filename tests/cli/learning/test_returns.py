"""A worker that returns and is lost at once, again and again, is asked for ever more seldom."""

from hypothesis import given
from hypothesis import strategies as st

from drlpp.cli.learning.returns import Returns


def test_who_is_lost_at_once_waits_twice_as_long_every_time() -> None:
    returns = Returns()
    assert returns.lost([2, 3]) == 0
    for pause in (2, 4, 8):
        assert returns.count([2, 3])
        returns.taken([2, 3])
        assert returns.lost([2, 3]) == pause
        for _ in range(pause):
            assert not returns.count([2, 3])
            returns.measured()
    # Others are counted on meanwhile.
    returns.taken([2, 3])
    returns.lost([2, 3])
    assert returns.count([1, 2])
    assert not returns.count([3])


def test_who_was_measured_with_is_counted_on_at_once_again() -> None:
    returns = Returns()
    returns.taken([0])
    returns.lost([0])
    for _ in range(2):
        returns.measured()
    returns.taken([0])
    returns.measured()
    assert returns.lost([0]) == 0
    assert returns.count([0])
    returns.taken([0])
    assert returns.lost([0]) == 2


@given(st.lists(st.booleans(), max_size=200))
def test_new_beginnings_are_no_more_than_runs_and_one(measures: list[bool]) -> None:
    """Whenever it can be, the worker is taken back; it is lost before or after a run."""
    returns, runs, beginnings = Returns(), 0, 0
    for measure in measures:
        if returns.count([0]):
            beginnings += 1
            returns.taken([0])
            if measure:
                returns.measured()
                runs += 1
            returns.lost([0])
        elif measure:
            returns.measured()
            runs += 1
    assert beginnings <= runs + 1
