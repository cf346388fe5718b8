"""How far off declarations are: scales of prior deviations, as probable as observations leave them.

Observations are normal around what is declared, with a covariance that is a sum of parts, each a
known matrix times the square of a scale. Scales have a log-normal prior around 1 and stand on a
grid, so that their posterior is exact there: declarations that fit are believed after a
measurement or two, and those that do not are doubted more than at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy
from numpy.random import Generator

from drlpp.costs.stage_cost import Array

_GRID = tuple(2.0**power for power in range(-4, 2))
DECLARED, NOISE = 2.0, 1.0
"""Standard deviations of a scale's binary logarithm, before anything was observed: of how far off
declarations are, and of noise."""

Scales = tuple[float, ...]


class ScalesPosterior:
    """The posterior of scales.

    Args:
        misses: what was observed less what is declared, ``(observations,)``.
        parts: for every scale a covariance of the observations, ``(observations, observations)``,
            and the standard deviation of its binary logarithm.
        rest: of all that has no scale.
    """

    def __init__(self, misses: Array, parts: Sequence[tuple[Array, float]], rest: Array) -> None:
        self._points: list[Scales] = list(product(_GRID, repeat=len(parts)))
        logs = []
        for scales in self._points:
            covariance = rest + sum(
                scale**2 * part for scale, (part, _) in zip(scales, parts, strict=True)
            )
            root = numpy.linalg.cholesky(covariance)
            whitened = numpy.linalg.solve(root, misses)
            off = numpy.log2(scales) / [spread for _, spread in parts]
            determinant = float(numpy.log(numpy.diag(root)).sum())
            logs.append(-0.5 * float(whitened @ whitened + off @ off) - determinant)
        weights = numpy.exp(numpy.array(logs) - max(logs))
        self._weights = weights / weights.sum()

    @property
    def most_probable(self) -> Scales:
        """The most probable scales."""
        return self._points[int(self._weights.argmax())]

    def sample(self, draw: Generator) -> Scales:
        """Draw scales."""
        return self._points[int(draw.choice(len(self._points), p=self._weights))]
