"""A race on curves that are known: who wins, who ends when, and what is trained and said."""

import math
from collections.abc import Callable

import pytest

from drlpp.placement.placement import Placement
from drlpp.racing.contenders import Contender
from drlpp.racing.halving import Train, run_race
from drlpp.racing.rivals import PLAIN
from drlpp.racing.training_race import (
    Curve,
    Final,
    Point,
    RaceEnd,
    Training,
    is_plain_as_good,
    race_lines,
)
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from tests.support.training.races import race_of

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
                minibatches=curve.minibatches + EVERY,
                seconds=seconds,
                loss=self.loss(training, seconds),
            )
            curve = Curve(points=(*curve.points, point))
        self.curves[training] = curve
        return curve


def race(
    candidates: int, train: Train, loss: float = 0.1, finals: int = 3, limit: float = 1000.0
) -> RaceEnd:
    return run_race(
        race_of(
            candidates,
            RATES,
            minibatches=2 * EVERY,
            every=EVERY,
            target_loss=loss,
            limit_seconds=limit,
            finals=finals,
        ),
        train,
    )


def test_the_fastest_learner_wins_with_its_own_rate() -> None:
    learners = Learners([0.1, 0.2, 0.4, 0.05], [0.3, 0.1, 0.9, 0.3])
    result = race(4, learners)
    assert result.finalists[0] == 2
    assert result.rates == pytest.approx({0: 0.3, 1: 0.1, 2: 0.9, 3: 0.3})
    assert [f.cost for f in result.finals[2]] == pytest.approx([math.log(10) / 0.4] * 3, rel=0.02)


def test_where_all_rates_fail_smaller_ones_are_tried() -> None:
    learners = Learners([0.4], [0.3])

    def train(training: Training, enough: Callable[[Curve], bool]) -> Curve:
        if training.rate > 0.02:
            return BEGIN.model_copy(update={"failure": "the loss is not finite"})
        return learners(training, enough)

    assert race(1, train).rates == {0: pytest.approx(0.1 / 9)}


def test_the_final_is_of_other_trainings_than_those_that_chose() -> None:
    learners = Learners([0.1, 0.4], [0.3, 0.3], noise=0.1)
    result = race(2, learners, finals=2)
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

    result = race(2, train, finals=2)
    missed, arrived = result.finals[0]
    longest = 3 * learners.curves[Training(0, 0.3)].seconds
    assert missed == Final(longest, False)
    assert arrived.arrived
    assert [final.arrived for final in result.finals[1]] == [True, True]


@pytest.mark.parametrize(("own", "tried"), [(8.1, {2.7, 8.1}), (0.01, {1 / 30, 1 / 90})])
def test_a_best_rate_at_the_edge_is_looked_for_beyond_it(own: float, tried: set[float]) -> None:
    learners = Learners([0.5], [own])
    found = race(1, learners).rates[0]
    rates = sorted({training.rate for training in learners.curves} - set(RATES))
    assert rates == pytest.approx(sorted(tried))
    assert found == pytest.approx(max(tried) if own > 1 else min(tried))


def test_half_of_them_end_at_each_doubling_but_not_the_reference() -> None:
    # The reference is the slowest learner, and trains to the goal nevertheless.
    learners = Learners([0.02, 0.4, 0.3, 0.2, 0.1, 0.05, 0.04, 0.03], [0.3] * 8)
    result = race(8, learners, finals=1)
    spent = {c: learners.curves[Training(c, 0.3)].seconds for c in range(8)}
    assert [spent[c] for c in range(1, 8)] == [6.0, 8.0, 8.0, 4.0, 2.0, 2.0, 2.0]
    assert learners.curves[Training(0, 0.3)].seconds_to(0.1) is not None
    assert result.finalists == [1, 2, 0]
    assert set(result.ended) == {3, 4, 5, 6, 7}


def test_what_cannot_win_does_not_train_on() -> None:
    learners = Learners([0.4, 0.1], [0.3, 0.3])
    result = race(2, learners)
    # Candidate 0 reaches the loss after 5.8 of 8 seconds, and candidate 1 would need 23.
    assert learners.curves[Training(1, 0.3)].seconds == 8.0
    assert "not reached" in result.ended[1]
    assert result.finalists == [0]
    assert result.costs == {0: pytest.approx(math.log(10) / 0.4, rel=0.02)}
    assert result.finals == {0: []}


def test_no_candidate_may_reach_the_loss() -> None:
    result = race(2, Learners([0.4, 0.1], [0.3, 0.3]), 1e-9, limit=10.0)
    assert result.finalists == []
    assert set(result.ended) == {0, 1}


def test_what_fails_with_every_rate_is_out() -> None:
    learners = Learners([0.4, 0.2], [0.3, 0.3])

    def train(training: Training, enough: Callable[[Curve], bool]) -> Curve:
        if training.candidate == 0:
            return BEGIN.model_copy(update={"failure": "out of memory"})
        return learners(training, enough)

    result = race(2, train, finals=1)
    assert result.rates[0] is None
    assert result.finalists == [1]
    assert "failed" in result.ended[0]


def test_a_race_that_was_interrupted_takes_the_same_course() -> None:
    """Also where curves are longer than they were when it was decided."""
    whole = Learners([0.1, 0.2, 0.4, 0.15], [0.3, 0.1, 0.9, 0.3], noise=0.02)
    wanted = race(4, whole)
    trained = dict(whole.curves)
    again = race(4, whole)
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


# What is said of it


TWO = Placement.from_assignment([0, 1], [0, 1])
RACE = race_of(
    (
        Contender(found_by=PLAIN, method=Method(), threads=1),
        Contender(found_by="even split", placement=TWO, method=Method()),
        Contender(
            found_by="even split",
            placement=TWO,
            method=choose_method("stash", {"microbatches": 2}),
        ),
    ),
    rates=(0.01,),
)


def ended(*seconds: float | None, arrived: bool = True) -> RaceEnd:
    """An end in which candidates took so long in the final; None: not in it."""
    costs = {number: cost for number, cost in enumerate(seconds) if cost is not None}
    finals = {
        number: [Final(cost * wobble, arrived or number != 0) for wobble in (0.99, 1.0, 1.01)]
        for number, cost in costs.items()
    }
    finalists = sorted(costs, key=costs.__getitem__)
    return RaceEnd(0.5, 60.0, dict.fromkeys(range(3), 0.01), {}, costs, finalists, finals)


def test_the_gain_over_plain_pytorch_is_told_first_and_once() -> None:
    end = ended(10, 8, 5)
    assert list(race_lines(RACE, end)) == [
        "even split (1-1, M = 2, 1f1b, 2 microbatches, stash) reached the loss 2.00× faster than "
        "plain PyTorch (1 thread) (95% CI 2.00–2.00)",
        "the first at held-out loss 0.5: even split (1-1, M = 2, 1f1b, 2 microbatches, stash)",
        "even split (1-1, M = 2, 1f1b, 2 microbatches, stash) reached the loss 1.60× faster than "
        "even split (1-1, 1f1b, pipeoptim) (95% CI 1.60–1.60)",
    ]
    assert not is_plain_as_good(RACE, end)


def test_where_no_candidate_is_significantly_better_plain_pytorch_is_to_be_used() -> None:
    for end in (ended(4, 8), ended(5.02, 8, 5)):
        lines = list(race_lines(RACE, end))
        assert any(line.startswith("use plain PyTorch") for line in lines)
        assert is_plain_as_good(RACE, end)
    assert lines[0].startswith("no significant difference: even split (1-1, M = 2,")


def test_what_did_not_reach_the_loss_is_named() -> None:
    *_, last = race_lines(RACE, ended(None, 6, 5))
    assert last == "plain PyTorch did not reach it"
    *_, last = race_lines(RACE, ended(15, 5, arrived=False))
    assert last == "plain PyTorch (1 thread) did not reach it in 3 of 3 trainings"
    assert next(race_lines(RACE, ended(None, 5))) == "no other candidate reached the loss"
    assert next(race_lines(RACE, ended(5))).startswith("use plain PyTorch: no other")
    (none,) = race_lines(RACE, ended())
    assert none.startswith("no candidate reached held-out loss 0.5 within 60 s")
