"""The course of a race to a loss: a search for learning rates, halving, and a final.

1. **Rates.** Candidates train on the same minibatches with each learning rate; where the best
   is the largest or the least of them, one more beyond it is tried, up to twice, and where all
   fail, less, up to twice. A candidate whose gradients are as late as another's takes its rate.
2. **Halving.** With its best rate each continues; the time doubles, and after each doubling the
   half with the higher held-out loss ends, until one reaches the loss. The others train to the end
   of that time, and no longer: what has not reached it by then cannot win. The first candidate,
   plain PyTorch, alone trains until it has reached the loss itself, or the limit: it is what a user
   has already.
3. **Final.** The first two and that one train from the beginning again, with other orders of
   the samples, in turns. What a race says of faster and slower rests on these alone: the trainings
   before have chosen what takes part, and with which rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from drlpp.errors import RunFailure
from drlpp.io.progress_lines import clock_text
from drlpp.racing.training_race import USUAL, Curve, Final, RaceEnd, Training, TrainingRace

_SEARCHED_EVALUATIONS = 3
"""A learning rate is tried until this many evaluations."""

_MORE_RATES = 2
_LONGEST_FINAL = 3.0
"""In the final a candidate trains no longer than this many times what it took in the halving."""

_LIMIT = 5.0
"""No candidate trains longer than this many times what the first takes to the loss it sets."""

_USUAL_LIMIT_SECONDS = 600.0

Train = Callable[[Training, Callable[[Curve], bool]], Curve]
"""Trains on until a curve is enough, or training fails, and returns the curve so far.

What was trained before is not trained again.
"""


@dataclass
class Halving:
    """A race that is run to its end: with the same curves it always ends the same way.

    Without a target the first candidate sets the loss to be reached.

    Args:
        race: what is raced; its runs are not looked at.
        train: trains one; what it returns decides all.
        on_step: called with what comes next.
        forget: called with a training that will not continue.

    Raises:
        RunFailure: the first candidate fails, and has to set the loss.
    """

    race: TrainingRace
    train: Train
    on_step: Callable[[str], None] = lambda step: None
    forget: Callable[[Training], None] = lambda training: None

    def __post_init__(self) -> None:
        self.searched = min(_SEARCHED_EVALUATIONS * self.race.every, self.race.minibatches)
        self._seconds_to_goal: float | None = None
        self.end = self._goal()

    def run(self) -> RaceEnd:
        """Run the three parts."""
        count, end = len(self.race.candidates), self.end
        chosen: dict[int, Training] = {}
        own = [self._takes_rate_of(candidate) == candidate for candidate in range(count)]
        finals = self.race.finals * min(count, 3)
        share = self.searched / (self.race.epochs * self.race.minibatches)
        searching = len(self.race.rates) * share
        for candidate in range(count):
            left = self._left(count - 1 + finals + sum(own[candidate:]) * searching)
            self.on_step(f"learning rates: candidate {candidate + 1} of {count}{left}")
            end.rates[candidate] = rate = self._rate(candidate)
            if rate is None:
                failure = self._failure(candidate)
                end.ended[candidate] = f"failed with every learning rate: {failure}"
            else:
                chosen[candidate] = Training(candidate, rate)
        curves = self._halve(chosen)
        for candidate in chosen.keys() - curves.keys():
            self.forget(chosen[candidate])
        self._final(chosen, curves)
        return end

    def _goal(self) -> RaceEnd:
        """Return the end of a race that has not begun, with the loss to reach."""
        race = self.race
        if race.target_loss is not None:
            return RaceEnd(race, race.target_loss, race.limit_seconds or _USUAL_LIMIT_SECONDS)
        self.on_step(f"learning rates: {race.usual}")
        rate = self._best_rate(USUAL, forget=False)
        if rate is None:
            raise RunFailure(
                f"{race.usual}, which would set the loss to be reached, cannot train the model: "
                f"{self._failure(USUAL)}; give --target-loss (target_loss)"
            )
        epochs = f"{race.epochs} epoch{'s' * (race.epochs > 1)}"
        self.on_step(f"the loss that {race.usual} reaches in {epochs}")
        wanted = race.epochs * race.minibatches
        curve = self._trained(Training(USUAL, rate), wanted)
        point = curve.after(wanted)
        if point is None or point.loss is None:
            raise RunFailure(f"{race.usual}, which sets the loss, failed: {curve.failure}")
        self._seconds_to_goal = point.seconds
        return RaceEnd(race, point.loss, race.limit_seconds or _LIMIT * point.seconds)

    def _left(self, trainings: float) -> str:
        """Return how much time so many trainings take, as far as the first has told it."""
        if self._seconds_to_goal is None:
            return ""
        return f", about {clock_text(trainings * self._seconds_to_goal)} of training left"

    def _trained(self, training: Training, minibatches: int) -> Curve:
        return self.train(training, lambda curve: curve.minibatches >= minibatches)

    def _failure(self, candidate: int) -> str | None:
        tried = Training(candidate, self.race.rates[0])
        return self.train(tried, lambda curve: True).failure

    def _takes_rate_of(self, candidate: int) -> int:
        return self.race.rate_of[candidate] if self.race.rate_of else candidate

    def _rate(self, candidate: int) -> float | None:
        """Return the rate of a candidate that is as late, if it trains with that; else its best."""
        rate = self.end.rates.get(self._takes_rate_of(candidate))
        if rate is not None:
            curve = self._trained(Training(candidate, rate), self.searched)
            if curve.failure is None:
                return rate
        return self._best_rate(candidate)

    def _best_rate(self, candidate: int, *, forget: bool = True) -> float | None:
        """Return the rate with the least loss after the search; None if none trains."""
        rates = self.race.rates

        def loss_with(rate: float) -> float:
            curve = self._trained(Training(candidate, rate), self.searched)
            point = curve.after(self.searched)
            return math.inf if point is None else point.comparable_loss

        def best() -> float:
            return min(tried, key=lambda rate: (tried[rate], rate))

        tried = {rate: loss_with(rate) for rate in rates}
        for _ in range(_MORE_RATES if len(rates) > 1 else 0):
            rate, factor = best(), rates[-1] / rates[-2]
            if rate not in (min(tried), max(tried)):
                break
            further = rate * factor if rate == max(tried) else rate / factor
            tried[further] = loss_with(further)
        rate = best()
        for other in tried.keys() - {rate} if forget else ():
            self.forget(Training(candidate, other))
        return rate if math.isfinite(tried[rate]) else None

    def _enough(self, seconds: float) -> Callable[[Curve], bool]:
        """Return what says of a curve whether it has so many seconds, or more change nothing."""
        loss, most = self.end.loss, min(seconds, self.end.limit_seconds)
        return lambda curve: curve.seconds >= most or curve.seconds_to(loss) is not None

    def _cost(self, curve: Curve) -> float:
        """Return the seconds to the loss; infinite if it was not reached."""
        seconds = curve.seconds_to(self.end.loss)
        # Costs are compared by their ratios.
        return math.inf if seconds is None else max(seconds, 1e-9)

    def _halve(self, chosen: dict[int, Training]) -> dict[int, Curve]:
        """Train longer and longer, and end those that cannot win; return the others' curves."""
        limit, ended = self.end.limit_seconds, self.end.ended
        curves = {c: self._trained(training, self.searched) for c, training in chosen.items()}
        points = (curve.after(self.searched) for curve in curves.values())
        seconds = max((point.seconds for point in points if point), default=limit)
        running = sorted(chosen)
        while running:
            seconds = min(2 * seconds, limit)
            trained = max(curves[c].seconds for c in running) / (self._seconds_to_goal or math.inf)
            left = self._left(len(running) * max(1 - trained, 0) + self.race.finals * 3)
            self.on_step(f"halving: {len(running)} train for {seconds:.0f} s each{left}")
            curves |= {c: self.train(chosen[c], self._enough(seconds)) for c in running}
            if seconds >= limit or any(self._cost(curves[c]) <= seconds for c in running):
                break
            ranked = sorted(running, key=lambda c: (curves[c].loss_at(seconds), c))
            for candidate in ranked[max(-(-len(ranked) // 2), 2) :]:
                if candidate != USUAL:
                    running.remove(candidate)
                    loss = curves[candidate].loss_at(seconds)
                    why = curves[candidate].failure or f"{loss:.4g}"
                    ended[candidate] = f"{why} after {seconds:.3g} s"
        if USUAL in chosen:
            curves[USUAL] = self.train(chosen[USUAL], self._enough(limit))
        for candidate in running:
            curve = curves[candidate]
            cost = self._cost(curve)
            if math.isfinite(cost):
                self.end.costs[candidate] = cost
            else:
                ended[candidate] = f"{curve.failure or 'not reached'} in {curve.seconds:.3g} s"
        return {candidate: curves[candidate] for candidate in running}

    def _final(self, chosen: dict[int, Training], curves: dict[int, Curve]) -> None:
        """Train the first two and the usual one again, with other orders of the samples."""
        end, count = self.end, self.race.finals
        ranked = sorted(end.costs, key=lambda c: (end.costs[c], c))
        finalists = ranked[:2] + [c for c in ranked[2:] if c == USUAL]
        end.finalists, end.finals = finalists, {candidate: [] for candidate in finalists}
        if len(ranked) < 2:
            return

        for number in range(1, count + 1):
            left = self._left(len(finalists) * (count - number + 1))
            self.on_step(f"final: {len(finalists)} train, {number} of {count}{left}")
            for candidate in finalists if number % 2 else finalists[::-1]:
                training = chosen[candidate]._replace(seed=number)
                longest = _LONGEST_FINAL * curves[candidate].seconds
                cost = self._cost(self.train(training, self._enough(longest)))
                arrived = math.isfinite(cost)
                end.finals[candidate].append(Final(cost if arrived else longest, arrived))
                self.forget(training)


class _NotTrainedYet(Exception):
    pass


def replay(race: TrainingRace) -> RaceEnd | None:
    """Return how a race in a file ended; None if it has not.

    Raises:
        RunFailure: the first candidate has failed, and had to set the loss.
    """
    curves = race.curves

    def known(training: Training, enough: Callable[[Curve], bool]) -> Curve:
        curve = curves.get(training)
        if curve is None or not (curve.failure or enough(curve)):
            raise _NotTrainedYet
        return curve

    try:
        return Halving(race, known).run()
    except _NotTrainedYet:
        return None
