"""Time to a loss: a search for every candidate's learning rate, halving, and a final.

1. **Rates.** Every candidate trains on the same minibatches with each learning rate; where the best
   is the largest or the least of them, one more beyond it is tried, up to twice, and where all
   fail, less, up to twice.
2. **Halving.** With its best rate each continues; the time doubles, and after each doubling the
   half with the higher held-out loss ends, until one reaches the loss. The others train to the end
   of that time, and no longer: what has not reached it by then cannot win. Plain PyTorch alone
   trains until it has reached the loss itself, or the limit: it is what a user has already.
3. **Final.** The first two and plain PyTorch train from the beginning again, with other orders of
   the samples, in turns. What a race says of faster and slower rests on these alone: the trainings
   before have chosen what takes part, and with which rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from drlpp.racing.curves import Curve
from drlpp.racing.race import RaceRules, race

PLAIN_NUMBER = 0
"""Plain PyTorch is the first candidate, and does not end before the loss."""

_MORE_RATES = 2
_LONGEST_FINAL = 3.0
"""In the final a candidate trains no longer than this many times what it took in the halving."""


class Training(NamedTuple):
    """One training: of which candidate, with which learning rate, and in which order of samples."""

    candidate: int
    rate: float
    seed: int = 0


@dataclass(frozen=True)
class Goal:
    """What wins: to reach ``loss`` on held-out samples first.

    Attributes:
        loss: to be reached.
        limit_seconds: of training, after which every candidate stops.
    """

    loss: float
    limit_seconds: float

    def __str__(self) -> str:
        return f"held-out loss {self.loss:.4g}"

    def enough(self, seconds: float) -> Callable[[Curve], bool]:
        """Return what says of a curve whether it has so many seconds, or more change nothing."""
        most = min(seconds, self.limit_seconds)
        return lambda curve: curve.seconds >= most or curve.seconds_to(self.loss) is not None

    def cost(self, curve: Curve) -> float:
        """Return the seconds to the loss; infinite if it was not reached."""
        seconds = curve.seconds_to(self.loss)
        # Costs are compared by their ratios.
        return math.inf if seconds is None else max(seconds, 1e-9)


class Train(Protocol):
    """Trains on until a curve is enough, or training fails."""

    def __call__(self, training: Training, enough: Callable[[Curve], bool]) -> Curve:
        """Return the curve so far; what was trained before is not trained again."""


@dataclass(frozen=True)
class Rules:
    """How a race is run.

    Attributes:
        rates: learning rates that every candidate tries, in ascending order.
        search_minibatches: that every candidate trains on with each of them.
        finals: trainings of each finalist.
        halving: whether candidates end before the loss; otherwise all train to it, or the limit.
    """

    rates: tuple[float, ...]
    search_minibatches: int
    finals: int = 3
    halving: bool = True


class Final(NamedTuple):
    """What a finalist's training cost; at least that, if it did not reach the loss."""

    cost: float
    arrived: bool


@dataclass
class Result:
    """How a race ended.

    Attributes:
        rates: every candidate's best learning rate; None if all have failed.
        ended: why a candidate did not reach the loss in the halving.
        costs: in the halving, of those that reached the loss.
        finalists: the first first, by the halving.
        finals: of each of these, for each order of samples.
    """

    rates: dict[int, float | None] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    costs: dict[int, float] = field(default_factory=dict)
    finalists: list[int] = field(default_factory=list)
    finals: dict[int, list[Final]] = field(default_factory=dict)


@dataclass(frozen=True)
class Race:
    """One race between ``candidates`` numbers from 0, of which 0 is plain PyTorch.

    Attributes:
        candidates: how many.
        train: trains one; what it returns decides all, so that a race that was interrupted takes
            the same course again.
        goal: what wins.
        rules: how it is run.
        on_step: called with what comes next.
        forget: called with a training that will not continue.
    """

    candidates: int
    train: Train
    goal: Goal
    rules: Rules
    on_step: Callable[[str], None] = lambda step: None
    forget: Callable[[Training], None] = lambda training: None

    def run(self) -> Result:
        """Run the three parts."""
        result = Result()
        chosen: dict[int, Training] = {}
        for candidate in range(self.candidates):
            self.on_step(f"learning rates: candidate {candidate + 1} of {self.candidates}")
            rate = best_rate(candidate, self.train, self.rules, self.forget)
            result.rates[candidate] = rate
            if rate is None:
                tried = Training(candidate, self.rules.rates[0])
                failure = self.train(tried, lambda curve: True).failure
                result.ended[candidate] = f"failed with every learning rate: {failure}"
            else:
                chosen[candidate] = Training(candidate, rate)
        curves = self._halve(chosen, result)
        for candidate in chosen.keys() - curves.keys():
            self.forget(chosen[candidate])
        self._final(chosen, curves, result)
        return result

    def _halve(self, chosen: Mapping[int, Training], result: Result) -> dict[int, Curve]:
        """Train longer and longer, and end those that cannot win; return the others' curves."""
        goal, end = self.goal, self.goal.limit_seconds
        wanted = self.rules.search_minibatches
        curves = {c: self.train(t, lambda c: c.minibatches >= wanted) for c, t in chosen.items()}
        seconds = max((curve.seconds_after(wanted) for curve in curves.values()), default=end)
        running = sorted(chosen)
        while running:
            seconds = min(2 * seconds, end)
            self.on_step(f"halving: {len(running)} left, {seconds:.0f} s of training each")
            curves |= {c: self.train(chosen[c], goal.enough(seconds)) for c in running}
            arrived = any(goal.cost(curves[c]) <= seconds for c in running)
            if seconds >= end or (arrived and self.rules.halving):
                break
            if not self.rules.halving:
                continue
            ranked = sorted(running, key=lambda c: (curves[c].loss_at(seconds), c))
            for candidate in ranked[max(-(-len(ranked) // 2), 2) :]:
                if candidate != PLAIN_NUMBER:
                    running.remove(candidate)
                    loss = curves[candidate].loss_at(seconds)
                    why = curves[candidate].failure or f"{loss:.4g}"
                    result.ended[candidate] = f"{why} after {seconds:.3g} s"
        if PLAIN_NUMBER in chosen:
            curves[PLAIN_NUMBER] = self.train(chosen[PLAIN_NUMBER], goal.enough(end))
        for candidate in running:
            cost = goal.cost(curves[candidate])
            if math.isfinite(cost):
                result.costs[candidate] = cost
            else:
                at = curves[candidate].seconds
                why = curves[candidate].failure or "not reached"
                result.ended[candidate] = f"{why} in {at:.3g} s"
        return {candidate: curves[candidate] for candidate in running}

    def _final(
        self, chosen: Mapping[int, Training], curves: Mapping[int, Curve], result: Result
    ) -> None:
        """Train the first two and plain PyTorch again, with other orders of the samples."""
        ranked = sorted(result.costs, key=lambda c: (result.costs[c], c))
        finalists = ranked[:2] + [c for c in ranked[2:] if c == PLAIN_NUMBER]
        result.finalists = finalists
        result.finals = {candidate: [] for candidate in finalists}
        if len(ranked) < 2:
            return
        finals = self.rules.finals

        def measure(index: int, *, long: bool) -> float:
            candidate = finalists[index]
            seed = len(result.finals[candidate]) + 1
            self.on_step(f"final: {len(finalists)} train, {seed} of {finals}")
            training = chosen[candidate]._replace(seed=seed)
            longest = _LONGEST_FINAL * curves[candidate].seconds
            cost = self.goal.cost(self.train(training, self.goal.enough(longest)))
            arrived = math.isfinite(cost)
            result.finals[candidate].append(Final(cost if arrived else longest, arrived))
            self.forget(training)
            return result.finals[candidate][-1].cost

        # All run in every round.
        race(len(finalists), measure, RaceRules(rounds=finals, least_rounds=finals + 1))


def best_rate(
    candidate: int,
    train: Train,
    rules: Rules,
    forget: Callable[[Training], None] = lambda training: None,
) -> float | None:
    """Return the rate with the least loss after the search's minibatches; None if none trains."""
    wanted = rules.search_minibatches

    def loss_with(rate: float) -> float:
        curve = train(Training(candidate, rate), lambda curve: curve.minibatches >= wanted)
        return curve.loss_after(wanted)

    tried = {rate: loss_with(rate) for rate in rules.rates}
    factor = rules.rates[-1] / rules.rates[-2] if len(rules.rates) > 1 else 1.0
    for _ in range(_MORE_RATES if len(rules.rates) > 1 else 0):
        best = min(tried, key=lambda rate: (tried[rate], rate))
        if best not in (min(tried), max(tried)):
            break
        further = best * factor if best == max(tried) else best / factor
        tried[further] = loss_with(further)
    best = min(tried, key=lambda rate: (tried[rate], rate))
    for rate in tried.keys() - {best}:
        forget(Training(candidate, rate))
    return best if math.isfinite(tried[best]) else None
