"""Choosing the best of several contenders by measuring them in turns until one wins clearly.

Successive halving with confidence intervals: all contenders run in rounds, there and back; those
that are worse than the leader with confidence run no more. Only rounds are compared with each
other, not contenders with each other's past, so drift of the machine hits all alike. What a round
costs is seconds per minibatch, or seconds to a loss. Where there are too many for a race, a heat
finds the one of them that enters it. What a race says, in words, is
:mod:`drlpp.racing.verdict`'s.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol

import numpy

from drlpp.placement.measurement import FailedMeasurement, Outcome


@dataclass(frozen=True)
class RaceRules:
    """When contenders are dropped and when a race ends.

    Attributes:
        rounds: the most there are.
        least_rounds: before any is dropped; two differences tell little of their spread.
        confidence: of a verdict.
        margin: contenders this little slower than the leader are as good as it is.
        final: a long measurement has this many times the minibatches of others, since what is
            faster for a while need not be so for long.
    """

    rounds: int = 7
    least_rounds: int = 3
    confidence: float = 0.95
    margin: float = 0.01
    final: int = 8


DEFAULT_RULES = RaceRules()

_FINALISTS = 2
_HEAT_ROUNDS = 3


@dataclass(frozen=True)
class Lead:
    """How one contender compares with another, over the rounds that both ran.

    Attributes:
        ratio: the other's costs over its own, a geometric mean.
        low, high: its 95% confidence interval by Student's t; 0 and infinity from a single round.
        probability: that it is not worse; one half from a single round.
    """

    ratio: float
    low: float
    high: float
    probability: float


class Measure(Protocol):
    """How a contender is measured."""

    def __call__(self, index: int, *, long: bool) -> float | None:
        """Run one, by its number, once; return what it cost, None if it failed."""


def cost_of(outcome: Outcome) -> float | None:
    """Return the seconds per minibatch of an outcome, None if it failed."""
    return None if isinstance(outcome, FailedMeasurement) else outcome.seconds_per_minibatch


def winner_of(costs: Sequence[Sequence[float]]) -> int | None:
    """Return the winner by the costs of every contender, round by round, none if it failed.

    It has the least median of those that ran in most rounds, since the others were dropped.
    """
    most = max(map(len, costs), default=0)
    running = [index for index, found in enumerate(costs) if len(found) == most > 0]
    return min(running, key=lambda index: statistics.median(costs[index]), default=None)


def race(
    contenders: int,
    measure: Measure,
    rules: RaceRules = DEFAULT_RULES,
    on_round: Callable[[int, int], None] = lambda done, running: None,
) -> list[list[float]]:
    """Measure contenders in turns until one is left, or the others are as good, or rounds run out.

    After a round those are dropped whose one-sided confidence bound of the logarithm of their
    costs over the leader's, paired by round, is above 0; but at most half of those that ran, the
    slowest first. A contender that fails runs no more. Once two are left, rounds are long. So is
    one round of several that are left when rounds run out, or before they count as equal, unless
    there are too few rounds for any to be dropped.

    Args:
        contenders: how many; they are numbered from 0.
        measure: by a contender's number.
        rules: when contenders are dropped and when it ends.
        on_round: called after every round with the rounds so far and the contenders left.

    Returns:
        The costs of every contender, round by round; none if it failed.
    """
    costs: list[list[float]] = [[] for _ in range(contenders)]
    running = list(range(contenders))
    decided = ran_long = False
    for number in range(rules.rounds):
        ends = decided or number + 1 == rules.rounds
        long = len(running) <= _FINALISTS or (ends and number >= rules.least_rounds)
        running = measure_round(number, running, partial(measure, long=long), costs)
        ran_long = ran_long or long
        decided = not running
        if running and number + 1 >= rules.least_rounds:
            running, decided = _judge(running, costs, rules)
        on_round(number + 1, len(running))
        if decided and (ran_long or len(running) < 2):
            break
    return costs


def heat(candidates: int, measure: Callable[[int], float | None]) -> int | None:
    """Choose one of several candidates with few measurements, by successive halving.

    All run in turns; the slower half by median runs no more, until two are left, which run until
    each has run three times. Whatever is left is near the best, and is measured anew in the race
    that it qualifies for. A candidate that fails runs no more; one alone need not run.

    Args:
        candidates: how many; they are numbered from 0.
        measure: runs one once, and returns what it cost, None if it failed.

    Returns:
        The number of the best, the first of those that are as good; None if all have failed.
    """
    costs: list[list[float]] = [[] for _ in range(candidates)]
    running = list(range(candidates))
    for number in count():
        if len(running) < 2 or (len(running) == 2 and number >= _HEAT_ROUNDS):
            break
        ran = measure_round(number, running, measure, costs)
        ranked = sorted(ran, key=lambda index: statistics.median(costs[index]))
        running = sorted(ranked[: max(-(-len(running) // 2), 2)])
    # One alone has not run.
    return min(running, key=lambda index: statistics.median(costs[index] or [0.0]), default=None)


def measure_round(
    number: int,
    running: Sequence[int],
    measure: Callable[[int], float | None],
    costs: Sequence[list[float]],
) -> list[int]:
    """Measure each once, in turns; the machine's drift hits all alike.

    Args:
        number: of the round: every other one goes the other way.
        running: the contenders that take part, in order.
        measure: runs one once.
        costs: of every contender, added to; one that fails has none any more.

    Returns:
        Those that have not failed.
    """
    for index in running if number % 2 == 0 else running[::-1]:
        cost = measure(index)
        if cost is None:
            costs[index].clear()
        else:
            costs[index].append(cost)
    return [index for index in running if costs[index]]


def _judge(
    running: Sequence[int], costs: Sequence[Sequence[float]], rules: RaceRules
) -> tuple[list[int], bool]:
    """Return those that stay, and whether the race is decided."""
    leader = min(running, key=lambda index: statistics.median(costs[index]))
    # Contenders are judged after every round: all verdicts together have the confidence asked for.
    looks = max(rules.rounds - rules.least_rounds + 1, 1)
    confidence = 1 - (1 - rules.confidence) / looks
    bounds = {
        index: _log_bounds(costs[leader], costs[index], confidence)
        for index in running
        if index != leader
    }
    slower = sorted((i for i in bounds if bounds[i][0] > 0), key=lambda i: bounds[i], reverse=True)
    dropped = slower[: len(running) // 2]
    left = [index for index in running if index not in dropped]
    as_good = math.log1p(rules.margin)
    return left, all(index == leader or bounds[index][1] < as_good for index in left)


def _log_bounds(
    leader: Sequence[float], other: Sequence[float], confidence: float
) -> tuple[float, float]:
    """Return the one-sided bounds of the mean logarithm of the other's costs over the leader's."""
    mean, error, freedom = _log_ratio(leader, other)
    reach = _quantile(freedom, confidence) * error if error else 0.0
    return mean - reach, mean + reach


def _log_ratio(leader: Sequence[float], other: Sequence[float]) -> tuple[float, float, int]:
    """Return the paired differences' mean, its standard error, and the degrees of freedom."""
    rounds = min(len(leader), len(other))
    differences = numpy.log(other[:rounds]) - numpy.log(leader[:rounds])
    mean = float(differences.mean())
    if rounds == 1:
        return mean, math.inf, 0
    return mean, float(differences.std(ddof=1)) / math.sqrt(rounds), rounds - 1


def lead_over(own: Sequence[float], others: Sequence[float]) -> Lead:
    """Return how a contender compares with another by their costs, over the rounds both ran."""
    mean, error, freedom = _log_ratio(own, others)
    ratio = math.exp(mean)
    if not freedom:
        return Lead(ratio, 0.0, math.inf, 0.5)
    if not error:
        return Lead(ratio, ratio, ratio, float(mean >= 0))
    # Either could have come out ahead by chance, after any of the rounds from the third on.
    chances = 2 * max(freedom - 1, 1)
    reach = _quantile(freedom, 1 - 0.05 / chances) * error
    if mean < 0:
        probability = _below(mean / error, freedom)
    else:
        probability = max(1 - chances * _below(-mean / error, freedom), 0.5)
    return Lead(ratio, math.exp(mean - reach), math.exp(mean + reach), probability)


def _below(t: float, freedom: int) -> float:
    """Return Student's distribution function (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle, odd = math.atan(t / math.sqrt(freedom)), freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    area = math.sin(angle) * total
    return (1 + (2 / math.pi * (angle + area) if odd else area)) / 2


def _quantile(freedom: int, probability: float) -> float:
    """Return below which t Student's distribution has a probability of one half or more."""
    if not freedom:
        return math.inf
    low, high = 0.0, 1.0
    while _below(high, freedom) < probability:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _below(middle, freedom) < probability else (low, middle)
    return high
