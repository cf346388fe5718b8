"""A race finds the fastest, says how sure it is, and ends."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from drlpp.racing.race import heat, lead_over, race, winner_of


class Track:
    """Contenders with given seconds; ``noise`` is the standard deviation of their logarithm."""

    def __init__(
        self,
        seconds: Sequence[float],
        noise: float = 0.0,
        seed: int = 0,
        fails_in: dict[int, int] | None = None,
    ) -> None:
        self.seconds = seconds
        self.noise = noise
        self.draw = random.Random(seed)
        self.fails_in = fails_in or {}
        self.order: list[int] = []
        self.left: list[int] = []
        self.long: list[bool] = []

    def measure(self, index: int, *, long: bool = False) -> float | None:
        self.order.append(index)
        self.long.append(long)
        if self.order.count(index) - 1 == self.fails_in.get(index):
            return None
        return self.seconds[index] * self.draw.lognormvariate(0, self.noise)

    def race(self, rounds: int) -> list[list[float]]:
        told = lambda done, left: self.left.append(left)  # noqa: E731
        return race(len(self.seconds), self.measure, rounds, told)


SECONDS = st.floats(0.001, 1000)


@given(st.lists(SECONDS, min_size=1, max_size=9), st.integers(1, 12))
def test_without_noise_the_fastest_wins(seconds: list[float], rounds: int) -> None:
    costs = Track(seconds).race(rounds)
    winner = winner_of(costs)
    assert winner is not None
    assert seconds[winner] == min(seconds)
    for index, own in enumerate(costs):
        assert set(own) == {seconds[index]}
        lead = lead_over(costs[winner], own)
        assert lead.ratio == pytest.approx(seconds[index] / min(seconds))
        if len(own) > 1:
            assert lead.low == pytest.approx(lead.ratio) == pytest.approx(lead.high)


@given(
    st.lists(SECONDS, min_size=1, max_size=9),
    st.floats(0, 0.3),
    st.integers(0, 1000),
    st.integers(1, 12),
    st.dictionaries(st.integers(0, 8), st.integers(0, 4), max_size=5),
)
def test_a_race_ends_by_its_rules(
    seconds: list[float], noise: float, seed: int, rounds: int, fails_in: dict[int, int]
) -> None:
    track = Track(seconds, noise, seed, fails_in)
    costs = track.race(rounds)
    runs = [track.order.count(index) for index in range(len(seconds))]
    assert len(track.left) <= rounds
    assert max(runs) <= len(track.left)
    failed = {
        index for index, run in fails_in.items() if index < len(seconds) and runs[index] > run
    }
    assert all(runs[index] == fails_in[index] + 1 for index in failed), "it runs no more"
    assert {index for index, own in enumerate(costs) if not own} == failed
    assert (winner_of(costs) is None) == (len(failed) == len(seconds))
    # Nobody is dropped in the first rounds, and never more than half of those that ran.
    for number, (before, left) in enumerate(pairwise([len(seconds), *track.left])):
        lost = sum(fails_in[index] == number for index in failed)
        stay = before - lost
        assert left == stay if number < 2 else left >= stay - stay // 2
    again = Track(seconds, noise, seed, fails_in)
    assert again.race(rounds) == costs


@given(
    st.lists(st.floats(0.9, 1.1), min_size=1, max_size=9),
    st.floats(0, 0.1),
    st.integers(0, 1000),
    st.integers(1, 12),
)
def test_a_winner_has_won_for_long(
    seconds: list[float], noise: float, seed: int, rounds: int
) -> None:
    track = Track(seconds, noise, seed)
    track.race(rounds)
    sizes = [len(seconds), *track.left[:-1]]
    long = []
    for size in sizes:
        (together,) = {*track.long[:size]}
        del track.long[:size]
        long.append(together)
    assert not track.long
    if track.left[-1] > 1 and rounds > 3:
        assert any(long), "nobody is equal, or the best of several, by short rounds alone"
    # Long rounds are those of the last two, and one in which more take part.
    assert all(long[number] for number, size in enumerate(sizes) if size <= 2)
    of_many = [number for number, size in enumerate(sizes) if size > 2 and long[number]]
    assert all(number >= 3 for number in of_many)
    assert len(of_many) <= 2, "what seemed to be equal may be told apart, and rounds run out"


@pytest.mark.parametrize("rounds", [2, 3, 4, 7, 12, 31])
def test_a_lead_is_students_interval_of_paired_differences(rounds: int) -> None:
    draw = random.Random(rounds)
    winner, rival = ([low + draw.random() for _ in range(rounds)] for low in (1.0, 1.2))
    lead = lead_over(winner, rival)
    differences = [math.log(b / a) for a, b in zip(winner, rival, strict=True)]
    # One look after each round from the third on, and either could have come out ahead.
    looks = max(rounds - 2, 1)
    interval = stats.ttest_1samp(differences, 0.0).confidence_interval(1 - 0.05 / looks)
    assert (math.log(lead.low), math.log(lead.high)) == pytest.approx(tuple(interval))
    assert lead.ratio == pytest.approx(math.exp(sum(differences) / rounds))


def test_what_was_dropped_cannot_win_and_is_compared_over_its_own_rounds() -> None:
    costs = [[1.0, 1.0, 9.0, 9.0, 9.0], [0.9, 1.3], []]
    assert winner_of(costs) == 0
    assert lead_over(costs[0], costs[1]).ratio == pytest.approx(math.sqrt(0.9 * 1.3))
    one = lead_over([1.0], [2.0])
    assert (one.ratio, one.low, one.high) == (2.0, 0.0, math.inf)
    assert winner_of([[], []]) is None


@given(st.lists(SECONDS, min_size=1, max_size=20), st.sets(st.integers(0, 19)))
def test_without_noise_a_heat_finds_the_fastest_of_those_that_run(
    seconds: list[float], fail: set[int]
) -> None:
    track = Track(seconds, fails_in=dict.fromkeys(fail, 0))
    alive = [index for index in range(len(seconds)) if index not in fail]
    best = heat(len(seconds), track.measure)
    if len(seconds) == 1:
        assert best == 0
        assert not track.order, "one alone need not run"
    elif not alive:
        assert best is None
    else:
        assert best is not None
        assert seconds[best] == min(seconds[index] for index in alive)


def test_a_heat_is_short_and_the_last_two_run_three_times() -> None:
    seconds = [1.0 + index / 10 for index in range(8)]
    track = Track(seconds, noise=0.001)
    assert heat(8, track.measure) == 0
    assert [track.order.count(index) for index in range(8)] == [3, 3, 2, 2, 1, 1, 1, 1]
    assert track.order[:8] == list(range(8))
    assert track.order[8:12] == [3, 2, 1, 0], "there and back"
    pair = Track([2.0, 1.0])
    assert heat(2, pair.measure) == 1
    assert pair.order == [0, 1, 1, 0, 0, 1]


def test_equals_within_the_margin_do_not_run_for_ever() -> None:
    track = Track([1.0, 1.0, 1.003], noise=0.001)
    track.race(1000)
    assert len(track.left) < 20
