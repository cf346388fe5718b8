"""A race on curves that are known: who wins, who ends when, and what is trained for it."""

import math
from collections.abc import Callable

import pytest

from drlpp.racing.curves import Curve, Point
from drlpp.racing.halving import Final, Goal, Race, Result, Rules, Train, Training, best_rate

RATES = (0.1, 0.3, 0.9)
EVERY = 10
BEGIN = Curve(points=(Point(minibatches=0, seconds=0, loss=1),))


class Learners:
    """Each candidate's loss falls as exp(−speed·seconds), worse with other rates than its own."""

    def __init__(self, speeds: list[float], rates: list[float], noise: float = 0.0) -> None:
        self.speeds, self.rates, self.noise = speeds, rates, noise
        self.curves: dict[Training, Curve] = {}

    def loss(self, training: Training, seconds: float) -> float:
        speed = self.speeds[training.candidate]
        off = abs(math.log(training.rate / self.rates[training.candidate]))
        wobble = self.noise * ((training.seed * 7 + training.candidate * 3) % 5 - 2)
        return math.exp(-speed * (1 + wobble) * seconds / (1 + off))

    def __call__(self, training: Training, enough: Callable[[Curve], bool]) -> Curve:
        curve = self.curves.get(training) or Curve(
            points=(Point(minibatches=0, seconds=0, loss=1),)
        )
        while not (curve.failure or enough(curve)):
            seconds = curve.seconds + 0.5
            point = Point(
                minibatches=curve.last.minibatches + EVERY,
                seconds=seconds,
                loss=self.loss(training, seconds),
            )
            curve = Curve(points=(*curve.points, point))
        self.curves[training] = curve
        return curve


def rules(finals: int = 3, *, halving: bool = True) -> Rules:
    return Rules(RATES, search_minibatches=2 * EVERY, finals=finals, halving=halving)


def race(candidates: int, train: Train, goal: Goal, rules: Rules) -> Result:
    return Race(candidates, train, goal, rules).run()


def to_loss(loss: float, limit: float = 1000.0) -> Goal:
    return Goal(loss, limit)


def test_the_fastest_learner_wins_with_its_own_rate() -> None:
    learners = Learners([0.1, 0.2, 0.4, 0.05], [0.3, 0.1, 0.9, 0.3])
    result = race(4, learners, to_loss(0.1), rules())
    assert result.finalists[0] == 2
    assert result.rates == pytest.approx({0: 0.3, 1: 0.1, 2: 0.9, 3: 0.3})
    assert [f.cost for f in result.finals[2]] == pytest.approx([math.log(10) / 0.4] * 3, rel=0.02)


def test_where_all_rates_fail_smaller_ones_are_tried() -> None:
    learners = Learners([0.4], [0.3])

    def train(training: Training, enough: Callable[[Curve], bool]) -> Curve:
        if training.rate > 0.02:
            return BEGIN.model_copy(update={"failure": "the loss is not finite"})
        return learners(training, enough)

    assert best_rate(0, train, rules()) == pytest.approx(0.1 / 9)


def test_the_final_is_of_other_trainings_than_those_that_chose() -> None:
    learners = Learners([0.1, 0.4], [0.3, 0.3], noise=0.1)
    result = race(2, learners, to_loss(0.1), rules(finals=2))
    for candidate in (0, 1):
        wanted = [learners.curves[Training(candidate, 0.3, seed)] for seed in (1, 2)]
        found = result.finals[candidate]
        assert found == [Final(curve.seconds_to(0.1) or math.nan, True) for curve in wanted]


def test_what_misses_the_loss_in_a_final_counts_as_if_it_had_reached_it_at_its_end() -> None:
    learners = Learners([0.3, 0.4], [0.3, 0.3])
    slow = {1: 0.01, 2: 1.0}

    def train(training: Training, enough: Callable[[Curve], bool]) -> Curve:
        if training.candidate == 0 and training.seed:
            slowed = Learners([0.3 * slow[training.seed]], [0.3])
            return slowed(training._replace(candidate=0), enough)
        return learners(training, enough)

    result = race(2, train, to_loss(0.1), rules(finals=2))
    missed, arrived = result.finals[0]
    longest = 3 * learners.curves[Training(0, 0.3)].seconds
    assert missed == Final(longest, False)
    assert arrived.arrived
    assert [final.arrived for final in result.finals[1]] == [True, True]


def test_without_halving_all_train_to_the_goal() -> None:
    speeds = [0.02, 0.4, 0.3, 0.2, 0.1, 0.05]
    learners = Learners(speeds, [0.3] * 6)
    result = race(6, learners, to_loss(0.1), rules(finals=1, halving=False))
    assert not result.ended
    for candidate, speed in enumerate(speeds):
        assert result.costs[candidate] == pytest.approx(math.log(10) / speed, rel=0.02)


@pytest.mark.parametrize(("own", "tried"), [(8.1, {2.7, 8.1}), (0.01, {1 / 30, 1 / 90})])
def test_a_best_rate_at_the_edge_is_looked_for_beyond_it(own: float, tried: set[float]) -> None:
    learners = Learners([0.5], [own])
    found = best_rate(0, learners, rules())
    rates = sorted({training.rate for training in learners.curves} - set(RATES))
    assert rates == pytest.approx(sorted(tried))
    assert found == pytest.approx(max(tried) if own > 1 else min(tried))


def test_half_of_them_end_at_each_doubling_but_not_the_reference() -> None:
    # The reference is the slowest learner, and trains to the goal nevertheless.
    learners = Learners([0.02, 0.4, 0.3, 0.2, 0.1, 0.05, 0.04, 0.03], [0.3] * 8)
    result = race(8, learners, to_loss(0.1), rules(finals=1))
    spent = {c: learners.curves[Training(c, 0.3)].seconds for c in range(8)}
    assert [spent[c] for c in range(1, 8)] == [6.0, 8.0, 8.0, 4.0, 2.0, 2.0, 2.0]
    assert learners.curves[Training(0, 0.3)].seconds_to(0.1) is not None
    assert result.finalists == [1, 2, 0]
    assert set(result.ended) == {3, 4, 5, 6, 7}


def test_what_cannot_win_does_not_train_on() -> None:
    learners = Learners([0.4, 0.1], [0.3, 0.3])
    result = race(2, learners, to_loss(0.1), rules())
    # Candidate 0 reaches the loss after 5.8 of 8 seconds, and candidate 1 would need 23.
    assert learners.curves[Training(1, 0.3)].seconds == 8.0
    assert "not reached" in result.ended[1]
    assert result.finalists == [0]
    assert result.costs == {0: pytest.approx(math.log(10) / 0.4, rel=0.02)}
    assert result.finals == {0: []}


def test_no_candidate_may_reach_the_loss() -> None:
    result = race(2, Learners([0.4, 0.1], [0.3, 0.3]), to_loss(1e-9, limit=10.0), rules())
    assert result.finalists == []
    assert set(result.ended) == {0, 1}


def test_what_fails_with_every_rate_is_out() -> None:
    learners = Learners([0.4, 0.2], [0.3, 0.3])

    def train(training: Training, enough: Callable[[Curve], bool]) -> Curve:
        if training.candidate == 0:
            return BEGIN.model_copy(update={"failure": "out of memory"})
        return learners(training, enough)

    result = race(2, train, to_loss(0.1), rules(finals=1))
    assert result.rates[0] is None
    assert result.finalists == [1]
    assert "failed" in result.ended[0]


def test_a_race_that_was_interrupted_takes_the_same_course() -> None:
    """Also where curves are longer than they were when it was decided."""
    whole = Learners([0.1, 0.2, 0.4, 0.15], [0.3, 0.1, 0.9, 0.3], noise=0.02)
    wanted = race(4, whole, to_loss(0.1), rules())
    trained = dict(whole.curves)
    again = race(4, whole, to_loss(0.1), rules())
    assert again == wanted
    assert whole.curves == trained


def test_a_curve_between_its_points() -> None:
    losses = [(0, 0.0, 2.0), (10, 1.0, 1.0), (20, 3.0, 1.5), (30, 4.0, 0.5)]
    curve = Curve(points=tuple(Point(minibatches=m, seconds=s, loss=v) for m, s, v in losses))
    assert curve.loss_at(0.5) == 1.5
    assert curve.loss_at(2.0) == 1.25
    assert curve.loss_at(9.0) == 0.5
    assert curve.seconds_to(1.5) == 0.5
    assert curve.seconds_to(1.0) == 1.0
    assert curve.seconds_to(0.75) == 3.75
    assert curve.minibatches_to(0.75) == 27.5
    assert curve.seconds_to(0.4) is None
    assert curve.model_copy(update={"failure": "lost"}).loss_at(5.0) == math.inf
