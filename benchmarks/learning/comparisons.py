"""Two ways compared, over seeds or cases: does the first do better, or as well?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy
from scipy import stats


class Verdict(StrEnum):
    """What results say about a statement."""

    SHOWS = "shows"
    DOES_NOT_SHOW = "does not show"
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
        return Verdict.SHOWS
    return Verdict.DOES_NOT_SHOW if refuted else Verdict.WITHIN_NOISE


def tally(comparisons: Sequence[Comparison]) -> str:
    """Count how many comparisons have which verdict, such as ``shows 3, within noise 1``."""
    verdicts = [comparison.verdict for comparison in comparisons]
    return ", ".join(f"{v} {verdicts.count(v)}" for v in Verdict if v in verdicts) or "no results"


def paired_difference(first: Sequence[float], second: Sequence[float]) -> str:
    """Return the median difference of two gaps in percentage points, with Wilcoxon's paired test.

    Args:
        first: shares of 1, of the same cases as ``second``.
        second: what ``first`` is compared with.
    """
    differences = 100 * (numpy.array(first) - numpy.array(second))
    if not differences.any():
        return "equal"
    p = stats.wilcoxon(differences).pvalue
    return f"{numpy.median(differences):+.2f}, p = {p:.2g}"
