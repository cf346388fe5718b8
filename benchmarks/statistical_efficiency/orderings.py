"""What pipeoptim §V-B says about which method is better, and whether results of ours show it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy import stats

# Table IV: highest top-1 accuracy in %, for GNMT BLEU; None where the paper has no figure.
TABLE_IV_METHODS = ("GPipe", "PipeDream", "2BW", "SpecTrain", "XPipe", "PipeOptim")
TABLE_IV: tuple[tuple[str, str, tuple[float | None, ...]], ...] = (
    ("SGDM", "AlexNet, Tiny-ImageNet", (51.93, 43.99, 45.00, 50.14, 39.24, 49.23)),
    ("SGDM", "ResNet-101, Tiny-ImageNet", (67.64, 67.72, 67.47, 67.81, 67.22, 67.84)),
    ("SGDM", "Inception-V3, Tiny-ImageNet", (56.56, 56.88, 56.98, 57.13, 56.32, 57.37)),
    ("AdamW", "Residual LSTM, IMDb", (85.65, 84.82, 85.13, None, 86.20, 86.38)),
    ("AdamW", "VGG-16, CIFAR-100", (67.05, 66.61, 66.66, None, 67.22, 67.91)),
    ("AdamW", "GoogleNet, CIFAR-100", (73.91, 74.58, 74.64, None, 75.09, 74.73)),
    ("Adam", "Residual LSTM, IMDb", (85.64, 85.52, 85.48, None, 86.57, 85.52)),
    ("Adam", "GNMT-8, WMT16 (BLEU)", (21.22, 21.04, 21.03, None, 21.06, 21.29)),
    ("Adam", "GNMT-16, WMT16 (BLEU)", (21.32, 21.44, 21.42, None, 21.55, 21.65)),
)


@dataclass(frozen=True)
class Ordering:
    """A statement of the paper: ``first`` is better than ``second``, or about as good.

    Attributes:
        text: the statement as the report shows it.
        optimizer: for which the paper makes it.
        alike: whether the two are said to be about equally good.
    """

    text: str
    optimizer: str
    first: str
    second: str
    alike: bool = False


ORDERINGS = (
    Ordering("PipeOptim ≥ PipeDream, SGDM", "sgd", "PipeOptim", "PipeDream"),
    Ordering("PipeOptim ≥ 2BW, SGDM", "sgd", "PipeOptim", "2BW"),
    Ordering("SpecTrain ≈ PipeOptim, SGDM", "sgd", "SpecTrain", "PipeOptim", alike=True),
    # Its accuracy "fluctuates" from model to model, which is to fall behind on some of them.
    Ordering("XPipe falls behind PipeOptim, SGDM", "sgd", "PipeOptim", "XPipe"),
    Ordering("PipeOptim ≥ GPipe, AdamW", "adamw", "PipeOptim", "GPipe"),
    Ordering("XPipe ≈ PipeOptim, Adam", "adam", "XPipe", "PipeOptim", alike=True),
    Ordering("PipeOptim > vanilla, SGDM", "sgd", "PipeOptim", "vanilla"),
    Ordering("PipeOptim > vanilla, Adam", "adam", "PipeOptim", "vanilla"),
    Ordering("PipeOptim > vanilla, AdamW", "adamw", "PipeOptim", "vanilla"),
)


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
