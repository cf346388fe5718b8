"""How many samples training takes to the same loss when gradients are late, as it was measured.

Points are (staleness, samples divided by those of plain PyTorch), from ``benchmarks`` and
docs/results.md. Most are of a decoder of 0.3 million weights with AdamW.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from drlpp.schedule.weight_policies import PIPEOPTIM, STASH

_Points = tuple[tuple[float, float], ...]


class _Samples(NamedTuple):
    """Of one policy, at its own best learning rate and at the best of plain PyTorch."""

    at_best_rate: _Points
    at_plain_rate: _Points


# Of pipeoptim the second point is the mean of nine trainings at staleness from 0.375 to 0.5, the
# third that of nine from 0.75 to 1: seeds differ by more than these do among themselves. Those from
# 3 on are one training each; of other policies those at 1 are mostly means of three. At plain
# PyTorch's rate no policy reached the loss with s of 7 after three times the minibatches: where the
# line would be below that, there is a point of 3.0. Of 2bw it is the mean of four depths.
_MEASURED = {
    "pipeoptim": _Samples(
        ((0.0, 1.0), (0.4375, 1.03), (0.875, 1.09), (3.0, 1.48), (7.0, 2.17)),
        ((0.0, 1.0), (0.4375, 1.06), (0.875, 1.14), (3.0, 1.78), (7.0, 3.0)),
    ),
    "stash": _Samples(
        ((0.0, 1.0), (1.0, 1.18), (3.0, 1.97), (7.0, 2.93)),
        ((0.0, 1.0), (1.0, 1.33), (3.0, 2.59)),
    ),
    "2bw": _Samples(
        ((0.0, 1.59), (1.0, 1.59)),
        ((0.0, 1.80), (1.0, 1.80)),
    ),
    "vanilla": _Samples(
        ((0.0, 1.0), (1.0, 1.18), (3.0, 1.81), (7.0, 2.81)),
        ((0.0, 1.0), (1.0, 1.41), (3.0, 2.56)),
    ),
    "2bw-ef": _Samples(
        ((0.0, 1.21), (1.0, 1.21)),
        ((0.0, 1.30), (1.0, 1.30)),
    ),
    "spectrain": _Samples(
        ((0.0, 1.0), (1.0, 1.24), (3.0, 2.09), (7.0, 2.72)),
        ((0.0, 1.0), (1.0, 1.50), (3.0, 2.72)),
    ),
    "xpipe": _Samples(
        ((0.0, 1.0), (1.0, 1.06), (3.0, 1.32), (7.0, 1.95)),
        ((0.0, 1.0), (1.0, 1.16), (3.0, 1.71), (7.0, 3.0)),
    ),
    "last-step": _Samples(
        ((0.0, 1.0), (1.0, 1.07), (3.0, 1.50), (7.0, 2.16)),
        ((0.0, 1.0), (1.0, 1.17), (3.0, 1.80)),
    ),
    "pipemare": _Samples(
        ((0.0, 1.0), (1.0, 1.15), (3.0, 1.70), (7.0, 2.36)),
        ((0.0, 1.0), (1.0, 1.24), (3.0, 2.03)),
    ),
}


def samples_needed(
    staleness: float, policy: str = PIPEOPTIM.name, *, at_plain_rate: bool = False
) -> float:
    """Return how many times the samples of plain PyTorch training takes to the same loss, roughly.

    Args:
        staleness: as :func:`drlpp.schedule.analysis.staleness.mean_staleness` gives it. Between
            those that were tried, and beyond them, lies a straight line.
        policy: the weight policy; one that was not tried counts as PipeDream's stashing.
        at_plain_rate: with the learning rate that is best for plain PyTorch instead of the one that
            is best for the policy.
    """
    samples = _MEASURED.get(policy, _MEASURED[STASH.name])
    pairs = list(pairwise(samples.at_plain_rate if at_plain_rate else samples.at_best_rate))
    (begin, before), (end, after) = next((p for p in pairs if staleness <= p[1][0]), pairs[-1])
    return before + (after - before) * (staleness - begin) / (end - begin)
