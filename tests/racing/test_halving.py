"""A race on curves that are known: who wins, who ends when, and what is trained and said."""

import math
from collections.abc import Callable

import pytest

from drlpp.placement.placement import Placement
from drlpp.racing.contenders import Contender
from drlpp.racing.halving import Halving
from drlpp.racing.rivals import PLAIN
from drlpp.racing.training_race import Curve, Final, Point, RaceEnd, Training
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from tests.support.training.races import race_of

RATES = (0.1, 0.3, 0.9)
EVERY = 10
BEGIN = Curve(points=(Point(minibatches=0, seconds=0, loss=1),))


class Learners:
    """Each candidate's loss falls as exp(−speed·seconds), worse with other rates than its own.

    Trainings fail for which ``fails`` gives a reason; ``slower`` divides their speed.
    """

    def __init__(
        self,
        speeds: list[float],
        rates: list[float],
        noise: float = 0.0,
        fails: Callable[[Training], object] = lambda training: None,
        slower: Callable[[Training], float] = lambda training: 1.0,
    ) -> None:
        self.speeds, self.rates, self.noise = speeds, rates, noise
        self.fails, self.slower = fails, slower
        self.curves: dict[Training, Curve] = {}

    def loss(self, training: Training, seconds: float) -> float:
        speed = self.speeds[training.candidate] / self.slower(training)
        off = abs(math.log(training.rate / self.rates[training.candidate]))
        wobble = self.noise * ((training.seed * 7 + training.candidate * 3) % 5 - 2)
        return math.exp(-speed * (1 + wobble) * seconds / (1 + off))

    def __call__(self, training: Training, enough: Callable[[Curve], bool]) -> Curve:
        curve = self.curves.get(training, BEGIN)
        if failure := self.fails(training):
            curve = BEGIN.model_copy(update={"failure": str(failure)})
        while not (curve.failure or enough(curve)):
            seconds = curve.seconds + 0.5
            done, loss = curve.minibatches + EVERY, self.loss(training, seconds)
            point = Point(minibatches=done, seconds=seconds, loss=loss)
            curve = Curve(points=(*curve.points, point))
        self.curves[training] = curve
        return curve

    def race(self, loss: float = 0.1, finals: int = 3, limit: float = 1000.0) -> RaceEnd:
        given = {"every": EVERY, "target_loss": loss, "limit_seconds": limit, "finals": finals}
        return Halving(race_of(len(self.speeds), RATES, minibatches=2 * EVERY, **given), self).run()


def test_the_fastest_learner_wins_with_its_own_rate() -> None:
    learners = Learners([0.1, 0.2, 0.4, 0.05], [0.3, 0.1, 0.9, 0.3])
    result = learners.race()
    assert result.finalists[0] == 2
    assert result.rates == pytest.approx({0: 0.3, 1: 0.1, 2: 0.9, 3: 0.3})
    assert [f.cost for f in result.finals[2]] == pytest.approx([math.log(10) / 0.4] * 3, rel=0.02)


def test_what_is_as_late_as_another_takes_its_rate_unless_it_fails_with_that() -> None:
    rates = [0.3, 0.1, 0.3, 0.9]
    learners = Learners([0.1, 0.2, 0.3, 0.4], rates, fails=lambda t: t[:2] == (3, 0.3))
    given = {"every": EVERY, "target_loss": 0.1, "limit_seconds": 1000.0, "rate_of": (0, 1, 0, 0)}
    end = Halving(race_of(4, RATES, minibatches=2 * EVERY, **given), learners).run()
    assert end.rates == pytest.approx(dict(enumerate(rates)))
    tried = [{t.rate for t in learners.curves if t.candidate == number} for number in range(4)]
    assert [len(of) for of in tried] == [3, 4, 1, 4]


def test_where_all_rates_fail_smaller_ones_are_tried() -> None:
    learners = Learners([0.4], [0.3], fails=lambda training: training.rate > 0.02 and "diverged")
    assert learners.race().rates == {0: pytest.approx(0.1 / 9)}


def test_what_fails_with_every_rate_is_out() -> None:
    learners = Learners([0.4, 0.2], [0.3] * 2, fails=lambda one: one.candidate == 0 and "no memory")
    result = learners.race(finals=1)
    assert result.rates[0] is None
    assert result.finalists == [1]
    assert "failed with every learning rate: no memory" in result.ended[0]


def test_the_final_is_of_other_trainings_than_those_that_chose() -> None:
    learners = Learners([0.1, 0.4], [0.3, 0.3], noise=0.1)
    result = learners.race(finals=2)
    order = [training.candidate for training in learners.curves if training.seed]
    assert order == [1, 0, 0, 1], "there and back"
    for candidate in (0, 1):
        wanted = [learners.curves[Training(candidate, 0.3, seed)] for seed in (1, 2)]
        found = result.finals[candidate]
        assert found == [Final(curve.seconds_to(0.1) or math.nan, True) for curve in wanted]


def test_what_misses_the_loss_in_a_final_counts_as_if_it_had_reached_it_at_its_end() -> None:
    slower = {(0, 1): 100.0}
    learners = Learners(
        [0.3, 0.4], [0.3, 0.3], slower=lambda t: slower.get((t.candidate, t.seed), 1)
    )
    result = learners.race(finals=2)
    missed, arrived = result.finals[0]
    longest = 3 * learners.curves[Training(0, 0.3)].seconds
    assert missed == Final(longest, False)
    assert arrived.arrived
    assert [final.arrived for final in result.finals[1]] == [True, True]


@pytest.mark.parametrize(("own", "tried"), [(8.1, {2.7, 8.1}), (0.01, {1 / 30, 1 / 90})])
def test_a_best_rate_at_the_edge_is_looked_for_beyond_it(own: float, tried: set[float]) -> None:
    learners = Learners([0.5], [own])
    found = learners.race().rates[0]
    rates = sorted({training.rate for training in learners.curves} - set(RATES))
    assert rates == pytest.approx(sorted(tried))
    assert found == pytest.approx(max(tried) if own > 1 else min(tried))


def test_half_of_them_end_at_each_doubling_but_not_the_reference() -> None:
    # The reference is the slowest learner, and trains to the goal nevertheless.
    learners = Learners([0.02, 0.4, 0.3, 0.2, 0.1, 0.05, 0.04, 0.03], [0.3] * 8)
    result = learners.race(finals=1)
    spent = {c: learners.curves[Training(c, 0.3)].seconds for c in range(8)}
    assert [spent[c] for c in range(1, 8)] == [6.0, 8.0, 8.0, 4.0, 2.0, 2.0, 2.0]
    assert learners.curves[Training(0, 0.3)].seconds_to(0.1) is not None
    assert result.finalists == [1, 2, 0]
    assert set(result.ended) == {3, 4, 5, 6, 7}


def test_what_cannot_win_does_not_train_on() -> None:
    learners = Learners([0.4, 0.1], [0.3, 0.3])
    result = learners.race()
    # Candidate 0 reaches the loss after 5.8 of 8 seconds, and candidate 1 would need 23.
    assert learners.curves[Training(1, 0.3)].seconds == 8.0
    assert "not reached" in result.ended[1]
    assert result.finalists == [0]
    assert result.costs == {0: pytest.approx(math.log(10) / 0.4, rel=0.02)}
    assert result.finals == {0: []}


def test_no_candidate_may_reach_the_loss() -> None:
    result = Learners([0.4, 0.1], [0.3, 0.3]).race(1e-9, limit=10.0)
    assert result.finalists == []
    assert set(result.ended) == {0, 1}


def test_a_race_that_was_interrupted_takes_the_same_course() -> None:
    """Also where curves are longer than they were when it was decided."""
    whole = Learners([0.1, 0.2, 0.4, 0.15], [0.3, 0.1, 0.9, 0.3], noise=0.02)
    wanted = whole.race()
    trained = dict(whole.curves)
    again = whole.race()
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
            found_by="even split", placement=TWO, method=choose_method("stash", {"microbatches": 2})
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
    return RaceEnd(RACE, 0.5, 60.0, dict.fromkeys(range(3), 0.01), {}, costs, finalists, finals)


def test_the_gain_over_plain_pytorch_is_told_first_and_once() -> None:
    end = ended(10, 8, 5)
    assert list(end.lines()) == [
        "even split (1-1, M = 2, stash) reached the loss 2.00× faster than "
        "plain PyTorch (1 thread) (95% CI 2.00–2.00)",
        "the first at held-out loss 0.5: even split (1-1, M = 2, stash)",
        "even split (1-1, M = 2, stash) reached the loss 1.60× faster than "
        "even split (1-1) (95% CI 1.60–1.60)",
    ]
    assert end.verdict is not None
    assert not end.verdict.is_torch_as_good


def test_where_no_candidate_is_significantly_better_plain_pytorch_is_to_be_used() -> None:
    for end in (ended(4, 8), ended(5.02, 8, 5)):
        lines = list(end.lines())
        assert any(line.startswith("use plain PyTorch") for line in lines)
        assert end.verdict is not None
        assert end.verdict.is_torch_as_good
    assert lines[0].startswith("no significant difference: even split (1-1, M = 2,")


def test_what_did_not_reach_the_loss_is_named() -> None:
    *_, last = ended(None, 6, 5).lines()
    assert last == "plain PyTorch did not reach it"
    *_, last = ended(15, 5, arrived=False).lines()
    assert last == "plain PyTorch (1 thread) did not reach it in 3 of 3 trainings"
    assert next(ended(None, 5).lines()) == "no other candidate reached the loss"
    assert next(ended(5).lines()).startswith("use plain PyTorch: no other")
    (none,) = ended().lines()
    assert none.startswith("no candidate reached held-out loss 0.5 within 60 s")
