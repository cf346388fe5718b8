"""What a placement is expected to take: the simulator, corrected by what was measured so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy
from numpy.random import Generator

from drlpp.costs.stage_cost import Array
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search import Judge, Space

_DISCREPANCY_SPREAD = numpy.array([0.1, 0.03, 0.05])
_NOISE = 0.02
_FAITH = 4.0
"""Measurements that this noise counts for, against what the others say of it."""

_FEATURES = 3


@dataclass(frozen=True)
class Discrepancy:
    """How measured seconds differ from simulated ones: ln(measured / simulated) by shape.

    Linear in the number of stages behind the first and in the share of accelerators that are
    replicas of others; what workers and links tell has been corrected before.

    Attributes:
        mean: of the coefficients.
        covariance: of the coefficients.
    """

    mean: Array
    covariance: Array

    @classmethod
    def of(cls, ratios: Sequence[tuple[Placement, float]] = ()) -> Discrepancy:
        """Compute the posterior from logarithms of ratios; the prior is normal around 0."""
        rows = numpy.array([shape_of(found) for found, _ in ratios]).reshape(-1, _FEATURES)
        logs = numpy.array([ratio for _, ratio in ratios])
        prior = numpy.diag(_DISCREPANCY_SPREAD**-2.0)

        def posterior(noise: float) -> tuple[Array, Array]:
            covariance = numpy.linalg.inv(prior + rows.T @ rows / noise**2)
            return covariance @ rows.T @ logs / noise**2, covariance

        mean, covariance = posterior(_NOISE)
        if len(logs) > _FEATURES:
            # What the shape does not explain is noise, more or less than expected.
            misses = logs - rows @ mean
            known = _FAITH + len(logs) - _FEATURES
            mean, covariance = posterior(
                math.sqrt((_FAITH * _NOISE**2 + float(misses @ misses)) / known)
            )
        return cls(mean, covariance)

    def sample(self, draw: Generator) -> Discrepancy:
        """Draw one that is as probable as the posterior has it, and certain."""
        drawn = draw.multivariate_normal(self.mean, self.covariance, method="cholesky")
        return Discrepancy(drawn, numpy.zeros_like(self.covariance))

    def factor(self, placement: Placement) -> float:
        """Return the factor by which simulated seconds are multiplied."""
        return math.exp(float(shape_of(placement) @ self.mean))


def shape_of(placement: Placement) -> Array:
    """Return 1, stages behind the first, share of accelerators that are replicas of others."""
    stages = len(placement.stages)
    held = len(placement.accelerators)
    # Where accelerators hold two stages each, none is another's replica.
    return numpy.array([1.0, stages - 1.0, max(held - stages, 0) / held])


class Surrogate(Judge):
    """Judges candidates with costs as measurements have corrected them.

    Args:
        problem: the workload and the cluster as measurements have corrected them.
        space: of the candidates.
        discrepancy: how measured seconds differ from simulated ones.
        failed: as a judge has it.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        space: Space,
        discrepancy: Discrepancy | None = None,
        failed: Iterable[Candidate] = (),
    ) -> None:
        super().__init__(problem, space, failed)
        self.discrepancy = discrepancy or Discrepancy.of()

    def factor(self, placement: Placement) -> float:
        """Return the discrepancy's factor."""
        return self.discrepancy.factor(placement)

    def correct(self, measured: Mapping[Candidate, float]) -> None:
        """Learn how far this surrogate is off from candidates of known seconds."""
        self.discrepancy = Discrepancy.of()
        ratios = []
        for candidate, seconds in measured.items():
            simulated = self(candidate)
            if math.isfinite(seconds) and self.fits(candidate, simulated):
                ratios.append((candidate.placement, math.log(seconds / simulated)))
        self.discrepancy = Discrepancy.of(ratios)
