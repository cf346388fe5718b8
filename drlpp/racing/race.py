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
from functools import cache, partial
from itertools import count

import numpy

from drlpp.placement.measurement import FailedMeasurement, Outcome

LEAST_ROUNDS = 3
"""Before any is dropped; two differences tell little of their spread."""

LONG = 8
"""A long measurement has this many times the minibatches of others.

What is faster for a while need not be so for long.
"""

_CONFIDENCE = 0.95
_AS_GOOD = 0.01
"""Contenders this little slower than the leader are as good as it is."""

_FINALISTS = 2
_HEAT_ROUNDS = 3


@dataclass(frozen=True)
class Lead:
    """How one contender compares with another, over the rounds that both ran.

    Attributes:
        ratio: the other's costs over its own, a geometric mean.
        low, high: its 95% confidence interval by Student's t; 0 and infinity from a single round.
    """

    ratio: float
    low: float
    high: float


def cost_of(outcome: Outcome, handicap: float = 1.0) -> float | None:
    """Return the seconds per minibatch of an outcome, so many times; None if it failed."""
    if isinstance(outcome, FailedMeasurement):
        return None
    return handicap * outcome.seconds_per_minibatch


def winner_of(costs: Sequence[Sequence[float]]) -> int | None:
    """Return the winner by the costs of every contender, round by round, none if it failed.

    It has the least median of those that ran in most rounds, since the others were dropped.
    """
    most = max(map(len, costs), default=0)
    running = [index for index, found in enumerate(costs) if len(found) == most > 0]
    return min(running, key=lambda index: statistics.median(costs[index]), default=None)


def race(
    contenders: int,
    measure: Callable[..., float | None],
    rounds: int = 7,
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
        measure: runs one once, by its number, and ``long`` or not; returns what it cost, None if it
            failed.
        rounds: the most there are.
        on_round: called after every round with the rounds so far and the contenders left.

    Returns:
        The costs of every contender, round by round; none if it failed.
    """
    costs: list[list[float]] = [[] for _ in range(contenders)]
    running = list(range(contenders))
    decided = ran_long = False
    for number in range(rounds):
        ends = decided or number + 1 == rounds
        long = len(running) <= _FINALISTS or (ends and number >= LEAST_ROUNDS)
        running = measure_round(number, running, partial(measure, long=long), costs)
        ran_long = ran_long or long
        decided = not running
        if running and number + 1 >= LEAST_ROUNDS:
            running, decided = _judge(running, costs, rounds)
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
    running: Sequence[int], costs: Sequence[Sequence[float]], rounds: int
) -> tuple[list[int], bool]:
    """Return those that stay, and whether the race is decided."""
    leader = min(running, key=lambda index: statistics.median(costs[index]))
    # Contenders are judged after every round: all verdicts together have the confidence asked for.
    chance = (1 - _CONFIDENCE) / (rounds - LEAST_ROUNDS + 1)
    bounds = {
        index: _log_bounds(costs[leader], costs[index], chance)[1:]
        for index in running
        if index != leader
    }
    slower = sorted((i for i in bounds if bounds[i][0] > 0), key=lambda i: bounds[i], reverse=True)
    dropped = slower[: len(running) // 2]
    left = [index for index in running if index not in dropped]
    as_good = math.log1p(_AS_GOOD)
    return left, all(index == leader or bounds[index][1] < as_good for index in left)


def lead_over(own: Sequence[float], others: Sequence[float]) -> Lead:
    """Return how a contender compares with another by their costs, over the rounds both ran."""
    # Either could have come out ahead by chance, after any of the rounds from the third on.
    chances = 2 * max(min(len(own), len(others)) - 2, 1)
    return Lead(*map(math.exp, _log_bounds(own, others, (1 - _CONFIDENCE) / chances)))


def _log_bounds(
    own: Sequence[float], others: Sequence[float], chance: float
) -> tuple[float, float, float]:
    """Return the mean logarithm of the others' costs over its own, paired by round, and its bounds.

    Each is passed with so much chance, by Student's t.
    """
    rounds = min(len(own), len(others))
    differences = numpy.log(others[:rounds]) - numpy.log(own[:rounds])
    mean = float(differences.mean())
    if rounds == 1:
        return mean, -math.inf, math.inf
    error = float(differences.std(ddof=1)) / math.sqrt(rounds)
    reach = _quantile(rounds - 1, 1 - chance) * error if error else 0.0
    return mean, mean - reach, mean + reach


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


@cache
def _quantile(freedom: int, probability: float) -> float:
    """Return below which t Student's distribution has a probability of one half or more."""
    low, high = 0.0, 1.0
    while _below(high, freedom) < probability:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _below(middle, freedom) < probability else (low, middle)
    return high
