"""What a placement is expected to take: the simulator, corrected by what was measured so far."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy
from numpy.random import Generator

from drlpp.costs.stage_cost import Array
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.planners.calibration.scales import DECLARED, Scales, ScalesPosterior
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search import Judge, Space

_DISCREPANCY_SPREAD = numpy.array([0.1, 0.03, 0.05])
_OWN_SPREAD, _NOISE = 0.03, 0.01
"""Standard deviations of logarithms; the last one's, of a measurement, has no scale."""

_FEATURES = 3

Ratio = tuple[Candidate, float]
"""A candidate, and ln(measured / simulated)."""


@dataclass(frozen=True)
class Discrepancy:
    """How measured seconds differ from simulated ones: ln(measured / simulated).

    Linear in the number of stages behind the first and in the share of accelerators that are
    replicas of others, and what a candidate has of its own, which is known of measured ones alone.
    What workers and links tell has been corrected before.

    Attributes:
        coefficients: of the shape.
        own: by what candidates share that are alike.
    """

    coefficients: Array
    own: Mapping[Hashable, float]

    def factor(self, candidate: Candidate) -> float:
        """Return the factor by which simulated seconds are multiplied."""
        common = float(shape_of(candidate.placement) @ self.coefficients)
        return math.exp(common + self.own.get(_alike(candidate), 0.0))


class DiscrepancyPosterior:
    """The discrepancies that are probable after some measurements.

    How large both parts are is learned (:mod:`drlpp.planners.calibration.scales`).

    Args:
        ratios: what was measured; the prior is normal around 0.
    """

    def __init__(self, ratios: Sequence[Ratio]) -> None:
        shapes = [shape_of(candidate.placement) for candidate, _ in ratios]
        self._keys = [_alike(candidate) for candidate, _ in ratios]
        self._rows = numpy.array(shapes).reshape(-1, _FEATURES)
        self._logs = numpy.array([log for _, log in ratios])
        explained = (self._rows * _DISCREPANCY_SPREAD**2) @ self._rows.T
        same = numpy.array([[one == other for other in self._keys] for one in self._keys])
        noise = _NOISE**2 * numpy.eye(len(ratios))
        own = _OWN_SPREAD**2 * same.reshape(noise.shape)
        self._scales = ScalesPosterior(self._logs, ((explained, DECLARED), (own, DECLARED)), noise)

    @property
    def most_probable(self) -> Discrepancy:
        """The most probable discrepancy."""
        mean, _, kept = self._posterior(self._scales.most_probable)
        return self._discrepancy(mean, kept * (self._logs - self._rows @ mean))

    def sample(self, draw: Generator) -> Discrepancy:
        """Draw one."""
        mean, covariance, kept = self._posterior(self._scales.sample(draw))
        coefficients = draw.multivariate_normal(mean, covariance, method="cholesky")
        own = kept * (self._logs - self._rows @ coefficients)
        own += math.sqrt(kept) * _NOISE * draw.standard_normal(len(own))
        return self._discrepancy(coefficients, own)

    def _posterior(self, scales: Scales) -> tuple[Array, Array, float]:
        """Return mean and covariance of the coefficients, and how much else is no noise."""
        spread, own = scales[0] * _DISCREPANCY_SPREAD, (scales[1] * _OWN_SPREAD) ** 2
        noise = own + _NOISE**2
        precision = numpy.diag(spread**-2.0) + self._rows.T @ self._rows / noise
        covariance = numpy.asarray(numpy.linalg.inv(precision), dtype=float)
        return covariance @ self._rows.T @ self._logs / noise, covariance, own / noise

    def _discrepancy(self, coefficients: Array, own: Array) -> Discrepancy:
        return Discrepancy(coefficients, dict(zip(self._keys, own.tolist(), strict=True)))


def _alike(candidate: Candidate) -> Hashable:
    """Return what candidates share that differ in which accelerators they use, not in how many."""
    stages = candidate.placement.stages
    return candidate.method, tuple((stage.operators, len(stage.accelerators)) for stage in stages)


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
        discrepancy: how measured seconds differ from simulated ones; by default not at all.
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
        self.discrepancy = discrepancy or Discrepancy(numpy.zeros(_FEATURES), {})

    def factor(self, candidate: Candidate) -> float:
        """Return the objective's factor times the discrepancy's."""
        return super().factor(candidate) * self.discrepancy.factor(candidate)

    def correct(self, measured: Mapping[Candidate, float]) -> DiscrepancyPosterior:
        """Learn from candidates of known costs how far this one is off that has none so far.

        From then on it has the most probable discrepancy; returned are all that are probable.
        """
        ratios = []
        for candidate, cost in measured.items():
            simulated = self(candidate)
            if math.isfinite(cost) and self.fits(candidate, simulated):
                ratios.append((candidate, math.log(cost / simulated)))
        posterior = DiscrepancyPosterior(ratios)
        self.discrepancy = posterior.most_probable
        return posterior
