"""Choosing the fastest of several contenders by measuring them in turns until one wins clearly.

Successive halving with confidence intervals: all contenders run in rounds, there and back; those
that are slower than the leader with confidence run no more. Only rounds are compared with each
other, not contenders with each other's past, so drift of the machine hits all alike. Where there
are too many for a race, a heat finds the one of them that enters it. What a race says, in words, is
:mod:`drlpp.comparison.verdict`'s.
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
from scipy.special import stdtr, stdtrit

from drlpp.placement.measurement import FailedMeasurement, Outcome


@dataclass(frozen=True)
class RaceRules:
    """When contenders are dropped and when a race ends.

    Attributes:
        rounds: the most there are.
        least_rounds: before anybody is dropped; two differences tell little of their spread.
        confidence: of a verdict, and of the intervals in a standing.
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


@dataclass(frozen=True)
class Lead:
    """How the winner compares with a rival, over the rounds that both ran.

    Attributes:
        rival: the number of the other contender.
        ratio: the rival's seconds over the winner's, a geometric mean.
        low, high: its confidence interval by Student's t; 0 and infinity from a single round.
        probability: that the winner is not slower; one half from a single round.
    """

    rival: int
    ratio: float
    low: float
    high: float
    probability: float


@dataclass(frozen=True)
class Standing:
    """The order of a race: ``winner`` is None if nothing could be measured.

    ``median_seconds`` is the winner's; ``leads`` has one entry for every rival that could be
    measured, the closest first.
    """

    winner: int | None
    median_seconds: float
    leads: tuple[Lead, ...]

    @classmethod
    def of(cls, seconds: Sequence[Sequence[float]], confidence: float = 0.95) -> Standing:
        """Judge by the seconds of every contender, round by round, none if it failed.

        The winner is the one with the least median of those that ran in most rounds, since the
        others were dropped.
        """
        most = max(map(len, seconds), default=0)
        if not most:
            return cls(None, math.nan, ())
        running = [index for index, found in enumerate(seconds) if len(found) == most]
        winner = min(running, key=lambda index: statistics.median(seconds[index]))
        leads = [
            lead_over(index, seconds[winner], found, confidence)
            for index, found in enumerate(seconds)
            if found and index != winner
        ]
        leads.sort(key=lambda lead: (lead.probability, lead.ratio))
        return cls(winner, statistics.median(seconds[winner]), tuple(leads))


class Measure(Protocol):
    """How a contender is measured."""

    def __call__(self, index: int, *, long: bool) -> Outcome:
        """Run one, by its number, once."""


def race(
    contenders: int,
    measure: Measure,
    rules: RaceRules = DEFAULT_RULES,
    on_round: Callable[[int, int], None] = lambda done, running: None,
) -> Standing:
    """Measure contenders in turns until one is left, or the others are as good, or rounds run out.

    After a round those are dropped whose one-sided confidence bound of the logarithm of their
    seconds over the leader's, paired by round, is above 0; but at most half of those that ran, the
    slowest first. A contender that fails runs no more. Once two are left, rounds are long. So is
    one round of several who are left when rounds run out, or before they count as equal, unless
    there are too few rounds for anybody to be dropped.

    Args:
        contenders: how many; they are numbered from 0.
        measure: by a contender's number.
        rules: when contenders are dropped and when it ends.
        on_round: called after every round with the rounds so far and the contenders left.
    """
    seconds: list[list[float]] = [[] for _ in range(contenders)]
    running = list(range(contenders))
    decided = ran_long = False
    for number in range(rules.rounds):
        ends = decided or number + 1 == rules.rounds
        long = len(running) <= _FINALISTS or (ends and number >= rules.least_rounds)
        running = measure_round(number, running, partial(measure, long=long), seconds)
        ran_long = ran_long or long
        decided = not running
        if running and number + 1 >= rules.least_rounds:
            running, decided = _judge(running, seconds, rules)
        on_round(number + 1, len(running))
        if decided and (ran_long or len(running) < 2):
            break
    return Standing.of(seconds, rules.confidence)


_HEAT_ROUNDS = 3


def heat(
    candidates: int,
    measure: Callable[[int], Outcome],
    on_round: Callable[[int], None] = lambda running: None,
) -> int | None:
    """Choose one of several candidates with few measurements, by successive halving.

    All run in turns; the slower half by median runs no more, until two are left, which run until
    each has run three times. Whoever is left is near the best, and what it takes is measured anew
    in the race that it qualifies for. A candidate that fails runs no more; one alone need not run.

    Args:
        candidates: how many; they are numbered from 0.
        measure: runs one once.
        on_round: called after every round with the candidates left.

    Returns:
        The number of the best, the first of those that are as good; None if all have failed.
    """
    seconds: list[list[float]] = [[] for _ in range(candidates)]
    running = list(range(candidates))
    for number in count():
        if len(running) < 2 or (len(running) == 2 and number >= _HEAT_ROUNDS):
            break
        ranked = sorted(
            measure_round(number, running, measure, seconds),
            key=lambda index: _median(seconds[index]),
        )
        running = sorted(ranked[: max(-(-len(running) // 2), 2)])
        on_round(len(running))
    return min(running, key=lambda index: _median(seconds[index]), default=None)


def measure_round(
    number: int,
    running: Sequence[int],
    measure: Callable[[int], Outcome],
    seconds: Sequence[list[float]],
) -> list[int]:
    """Measure each once, in turns; the machine's drift hits all alike.

    Args:
        number: of the round: every other one goes the other way.
        running: who takes part, in order.
        measure: runs one once.
        seconds: of every contender, added to; one that fails has none any more.

    Returns:
        Who has not failed.
    """
    for index in running if number % 2 == 0 else running[::-1]:
        outcome = measure(index)
        if isinstance(outcome, FailedMeasurement):
            seconds[index].clear()
        else:
            seconds[index].append(outcome.seconds_per_minibatch)
    return [index for index in running if seconds[index]]


def _median(seconds: Sequence[float]) -> float:
    """Return the median, or 0 without seconds, as for a contender that need not run."""
    return statistics.median(seconds) if seconds else 0.0


def _judge(
    running: Sequence[int], seconds: Sequence[Sequence[float]], rules: RaceRules
) -> tuple[list[int], bool]:
    """Return who stays, and whether the race is decided."""
    leader = min(running, key=lambda index: statistics.median(seconds[index]))
    # Contenders are judged after every round: all verdicts together have the confidence asked for.
    looks = max(rules.rounds - rules.least_rounds + 1, 1)
    confidence = 1 - (1 - rules.confidence) / looks
    bounds = {
        index: _log_bounds(seconds[leader], seconds[index], confidence)
        for index in running
        if index != leader
    }
    slower = sorted((i for i in bounds if bounds[i][0] > 0), key=lambda i: bounds[i], reverse=True)
    dropped = slower[: len(running) // 2]
    left = [index for index in running if index not in dropped]
    as_good = math.log1p(rules.margin)
    return left, all(index == leader or bounds[index][1] < as_good for index in left)


def _log_bounds(
    leader: Sequence[float], rival: Sequence[float], confidence: float
) -> tuple[float, float]:
    """Return the one-sided lower and upper bound of a mean logarithm.

    It is the logarithm of the rival's seconds over the leader's.
    """
    mean, error, freedom = _log_ratio(leader, rival)
    # As scipy.stats.ttest_rel has it, which takes far longer to import and warns of equal ratios.
    reach = float(stdtrit(freedom, confidence)) * error if error else 0.0
    return mean - reach, mean + reach


def _log_ratio(leader: Sequence[float], rival: Sequence[float]) -> tuple[float, float, int]:
    """Return the paired differences' mean, its standard error, and the degrees of freedom."""
    rounds = min(len(leader), len(rival))
    differences = numpy.log(rival[:rounds]) - numpy.log(leader[:rounds])
    mean = float(differences.mean())
    if rounds == 1:
        return mean, math.inf, 0
    return mean, float(differences.std(ddof=1)) / math.sqrt(rounds), rounds - 1


def lead_over(
    rival: int, winner_seconds: Sequence[float], seconds: Sequence[float], confidence: float = 0.95
) -> Lead:
    """Return how a contender compares with another, over the rounds that both ran."""
    mean, error, freedom = _log_ratio(winner_seconds, seconds)
    ratio = math.exp(mean)
    if not freedom:
        return Lead(rival, ratio, 0.0, math.inf, 0.5)
    if not error:
        return Lead(rival, ratio, ratio, ratio, float(mean >= 0))
    # Either could have come out ahead by chance, after any of the rounds from the third on.
    chances = 2 * max(freedom - 1, 1)
    reach = float(stdtrit(freedom, 1 - (1 - confidence) / chances)) * error
    if mean < 0:
        probability = float(stdtr(freedom, mean / error))
    else:
        probability = max(1 - chances * float(stdtr(freedom, -mean / error)), 0.5)
    return Lead(rival, ratio, math.exp(mean - reach), math.exp(mean + reach), probability)
