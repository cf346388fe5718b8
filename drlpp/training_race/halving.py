"""Who reaches a loss first: a search for everybody's learning rate, halving, and a final.

All costs are seconds of training, the same for every candidate in each of three parts:

1. **Rates.** Every candidate trains for ``search_seconds`` with each learning rate; where the best
   is the largest or the least of them, one more beyond it is tried, up to twice.
2. **Halving.** With its best rate each continues; the time doubles, and after each doubling the
   half with the higher held-out loss ends, until somebody reaches the goal. The others train to the
   end of that time, and no longer: who is not there by then cannot win. Plain PyTorch alone trains
   until it has reached the goal itself, or the limit: it is what a user has already.
3. **Final.** The first two and plain PyTorch train from the beginning again, with other orders of
   the samples, in turns. What a race says of sooner and later rests on these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from drlpp.training_race.curves import Curve

_MORE_RATES = 2
_LONGEST_FINAL = 3.0
"""In the final nobody trains longer than this many times what it took in the halving."""


class Training(NamedTuple):
    """One training: of which candidate, with which learning rate, and in which order of samples."""

    candidate: int
    rate: float
    seed: int = 0


@dataclass(frozen=True)
class Goal:
    """What wins: to reach ``loss`` first, or the least loss after ``seconds``; one of them is None.

    Attributes:
        loss: on held-out samples.
        seconds: of training.
        limit_seconds: after which nobody trains on who has not reached the loss.
    """

    loss: float | None
    seconds: float | None
    limit_seconds: float

    def is_reached(self, curve: Curve) -> bool:
        """Return whether more training can change nothing."""
        if self.loss is not None and curve.reaches(self.loss):
            return True
        return curve.seconds >= (self.limit_seconds if self.seconds is None else self.seconds)

    def enough(self, seconds: float) -> Callable[[Curve], bool]:
        """Return what says of a curve whether it has so many seconds, or more change nothing."""
        return lambda curve: curve.seconds >= seconds or self.is_reached(curve)

    def cost(self, curve: Curve) -> float:
        """Return what is compared, the less the better; infinite if the goal was not reached.

        It is the seconds to the loss; or e to the loss after the seconds, so that ratios of costs
        are differences of losses.
        """
        if self.loss is not None:
            seconds = curve.seconds_to(self.loss)
            return math.inf if seconds is None else seconds
        assert self.seconds is not None
        return math.exp(min(curve.loss_at(self.seconds), 700.0))


class Train(Protocol):
    """Trains on until a curve is enough, or training fails."""

    def __call__(self, training: Training, enough: Callable[[Curve], bool]) -> Curve:
        """Return the curve so far; what was trained before is not trained again."""


@dataclass(frozen=True)
class Rules:
    """How a race is run.

    Attributes:
        rates: learning rates that everybody tries, in ascending order.
        search_seconds: of training with each of them.
        finals: trainings of a finalist in all, that of the halving included.
    """

    rates: tuple[float, ...]
    search_seconds: float
    finals: int = 3


@dataclass
class Result:
    """How a race ended.

    Attributes:
        rates: everybody's best learning rate; None if all have failed.
        ended: after how many seconds who ended in the halving, and why.
        finalists: the first first, by the halving.
        costs: of the finalists, one for each order of samples: of those that reached the goal.
    """

    rates: dict[int, float | None] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    finalists: list[int] = field(default_factory=list)
    costs: dict[int, list[float]] = field(default_factory=dict)


def race(
    candidates: int,
    train: Train,
    goal: Goal,
    rules: Rules,
    reference: int | None = None,
    on_step: Callable[[str], None] = lambda step: None,
    forget: Callable[[Training], None] = lambda training: None,
) -> Result:
    """Run the three parts.

    Args:
        candidates: how many; they are numbered from 0.
        train: trains one; what it returns decides all, so that a race that was interrupted takes
            the same course again.
        goal: what wins.
        rules: how it is run.
        reference: plain PyTorch's number, which does not end before the goal.
        on_step: called with what comes next.
        forget: called with a training that will not continue.
    """
    result = Result()
    for candidate in range(candidates):
        on_step(f"learning rates: candidate {candidate + 1} of {candidates}")
        result.rates[candidate] = best_rate(candidate, train, rules, forget)
        if result.rates[candidate] is None:
            result.ended[candidate] = "failed with every learning rate"
    chosen = {c: Training(c, rate) for c, rate in result.rates.items() if rate is not None}
    curves = _halve(chosen, train, goal, rules, reference, result, on_step)
    for candidate in chosen.keys() - curves.keys():
        forget(chosen[candidate])
    _final(chosen, curves, train, goal, rules, reference, result, on_step)
    return result


def best_rate(
    candidate: int,
    train: Train,
    rules: Rules,
    forget: Callable[[Training], None] = lambda training: None,
) -> float | None:
    """Return the rate with the least loss after the search's seconds; None if none trains."""

    def loss_with(rate: float) -> float:
        curve = train(Training(candidate, rate), lambda c: c.seconds >= rules.search_seconds)
        return curve.loss_at(rules.search_seconds)

    tried = {rate: loss_with(rate) for rate in rules.rates}
    factor = rules.rates[-1] / rules.rates[-2] if len(rules.rates) > 1 else 1.0
    for _ in range(_MORE_RATES if len(rules.rates) > 1 else 0):
        best = min(tried, key=lambda rate: tried[rate])
        if not math.isfinite(tried[best]) or best not in (min(tried), max(tried)):
            break
        further = best * factor if best == max(tried) else best / factor
        tried[further] = loss_with(further)
    best = min(tried, key=lambda rate: tried[rate])
    for rate in tried.keys() - {best}:
        forget(Training(candidate, rate))
    return best if math.isfinite(tried[best]) else None


def _halve(
    chosen: Mapping[int, Training],
    train: Train,
    goal: Goal,
    rules: Rules,
    reference: int | None,
    result: Result,
    on_step: Callable[[str], None],
) -> dict[int, Curve]:
    """Train for longer and longer, and end those that cannot win; return the curves of the rest."""
    running = sorted(chosen)
    end = goal.limit_seconds if goal.seconds is None else goal.seconds
    seconds = rules.search_seconds
    curves: dict[int, Curve] = {}
    while running:
        seconds = min(2 * seconds, end)
        on_step(f"halving: {len(running)} left, {seconds:.0f} s of training each")
        curves |= {c: train(chosen[c], goal.enough(seconds)) for c in running}
        first = min(goal.cost(curves[c]) for c in running) if goal.loss is not None else math.inf
        if first <= seconds or seconds >= end:
            break
        ranked = sorted(running, key=lambda c: (curves[c].loss_at(seconds), c))
        kept = ranked[: max(-(-len(ranked) // 2), 2)]
        for candidate in ranked[len(kept) :]:
            if candidate != reference:
                loss = curves[candidate].loss_at(seconds)
                result.ended[candidate] = f"{loss:.4g} after {seconds:.3g} s"
        running = sorted({*kept, *({reference} & chosen.keys() if reference is not None else ())})
    if goal.loss is not None and reference in curves:
        assert reference is not None
        curves[reference] = train(chosen[reference], goal.enough(goal.limit_seconds))
    for candidate in running:
        if goal.loss is not None and not math.isfinite(goal.cost(curves[candidate])):
            at = curves[candidate].seconds
            result.ended[candidate] = f"not reached in {at:.3g} s"
    return {candidate: curves[candidate] for candidate in running}


def _final(
    chosen: Mapping[int, Training],
    curves: Mapping[int, Curve],
    train: Train,
    goal: Goal,
    rules: Rules,
    reference: int | None,
    result: Result,
    on_step: Callable[[str], None],
) -> None:
    """Train the first two and the reference again, with other orders of the samples."""
    costs = {candidate: goal.cost(curve) for candidate, curve in curves.items()}
    arrived = sorted((c for c in costs if math.isfinite(costs[c])), key=lambda c: (costs[c], c))
    result.finalists = arrived[:2] + [c for c in arrived[2:] if c == reference]
    result.costs = {candidate: [costs[candidate]] for candidate in result.finalists}
    for seed in range(1, rules.finals if len(result.finalists) > 1 else 1):
        on_step(f"final: training {seed + 1} of {rules.finals} of {len(result.finalists)}")
        turns = result.finalists if seed % 2 else result.finalists[::-1]
        for candidate in turns:
            longest = _LONGEST_FINAL * curves[candidate].seconds
            curve = train(chosen[candidate]._replace(seed=seed), goal.enough(longest))
            if math.isfinite(cost := goal.cost(curve)):
                result.costs[candidate].append(cost)
