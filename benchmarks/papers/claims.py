"""Statements of the papers, judged by our results over seeds or repetitions, and their tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pandas import DataFrame
from scipy import stats

NOT_YET = "not measured yet"
NOT_DECIDED = "not decided"

Scores = Mapping[int, float]
"""Of every seed, or repetition."""


class Verdict(StrEnum):
    """What results say about a statement."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    WITHIN_NOISE = "within noise"


@dataclass(frozen=True)
class Comparison:
    """Two methods compared over seeds.

    Attributes:
        mean: of the differences, first minus second, positive where the first is better.
        standard_error: of that mean.
    """

    verdict: Verdict
    mean: float
    standard_error: float


def compare(
    first: Mapping[int, float], second: Mapping[int, float], alike_within: float | None = None
) -> Comparison | None:
    """Judge a statement by the paired differences of two methods.

    Runs of the same seed start from the same weights and see the same samples in the same order,
    so it is their difference that counts. With the 95% confidence interval of its mean
    (Student's t), "first is better" is shown if the interval is above zero, and not if it is below.
    "Alike" is shown if the interval is within ±``alike_within``, and not if it is outside.
    Anything else is within noise.

    Args:
        first: the score of every seed, more is better.
        second: as ``first``; seeds that only one of the two has are left out.
        alike_within: the difference that does not matter, for methods said to be alike.

    Returns:
        None if fewer than two seeds have both.
    """
    differences = [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]
    if len(differences) < 2:
        return None
    mean = statistics.mean(differences)
    error = statistics.stdev(differences) / len(differences) ** 0.5
    reach = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return Comparison(_judge(mean - reach, mean + reach, alike_within), mean, error)


def _judge(low: float, high: float, alike_within: float | None) -> Verdict:
    if alike_within is None:
        shown, refuted = low > 0, high < 0
    else:
        shown = -alike_within <= low and high <= alike_within
        refuted = high < -alike_within or low > alike_within
    if shown:
        return Verdict.HOLDS
    return Verdict.DOES_NOT_HOLD if refuted else Verdict.WITHIN_NOISE


@dataclass(frozen=True)
class Claim:
    """A statement, and what results say about it somewhere.

    Attributes:
        text: the paper's statement.
        where: the task or model.
        verdict: holds, does not hold, within noise, not decided, or not measured yet.
        figures: by which it was decided.
    """

    text: str
    where: str
    verdict: str
    figures: str


def judged(
    text: str, where: str, first: Scores, second: Scores, alike_within: float | None = None
) -> Claim:
    """Judge whether ``first`` is better than ``second``, or alike; more is better."""
    found = compare(first, second, alike_within)
    return Claim(text, where, *_in_words(found, lambda value: f"{value:+.3f}"))


def judged_seconds(
    text: str,
    where: str,
    first: Scores,
    second: Scores,
    alike_within: float | None = None,
    *,
    first_is_least: bool = False,
) -> Claim:
    """Judge whether ``first`` takes less than ``second``; ``alike_within`` is relative.

    Figures are how many times as soon the first is. If its seconds are the least that it may take,
    since it was not there when it was given up, they cannot show that it takes less.
    """
    logs = [{seed: -math.log(value) for seed, value in of.items()} for of in (first, second)]
    within = None if alike_within is None else math.log(1 + alike_within)
    found = compare(logs[0], logs[1], within)
    verdict, figures = _in_words(found, lambda value: f"{math.exp(value):.2f}×")
    if first_is_least and verdict == Verdict.HOLDS:
        verdict, figures = NOT_DECIDED, f"at most {figures}"
    return Claim(text, where, verdict, figures)


def decided(text: str, where: str, holds: bool | None, figures: str) -> Claim:
    """Return a claim that numbers without noise decide; None if there are none yet."""
    verdict = NOT_YET if holds is None else "holds" if holds else "does not hold"
    return Claim(text, where, verdict, figures if holds is not None else "")


def claims_table(claims: Sequence[Claim]) -> DataFrame:
    """Return a row for each claim."""
    return DataFrame(
        {"claim": c.text, "here": c.where, "verdict": c.verdict, "by": c.figures} for c in claims
    )


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean of values, with their deviation if there are several."""
    if not values:
        return NOT_YET
    text = f"{statistics.mean(values):.{digits}f}"
    return f"{text} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else text


def _in_words(found: Comparison | None, figure: object) -> tuple[str, str]:
    if found is None:
        return NOT_YET, ""
    assert callable(figure)
    reach = f"{figure(found.mean)} (± {found.standard_error:.3f})"
    return str(found.verdict), reach


def section(
    tables: Sequence[tuple[str, DataFrame]], claims: Sequence[Claim]
) -> dict[str, DataFrame]:
    """Return tables by their titles, and the verdicts on a paper's claims."""
    return {**dict(tables), "What the paper says, and what shows here": claims_table(claims)}
