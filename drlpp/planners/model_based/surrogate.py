"""What a placement is expected to take: the simulator, corrected by what was measured so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy
from numpy.random import Generator

from drlpp.costs.stage_work import Array
from drlpp.placement.placement import Placement
from drlpp.planners.model_based.calibration import Calibrated
from drlpp.planners.problem.objective import AnalyticObjective
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.simulator import simulate

_DISCREPANCY_SPREAD = 0.1
_NOISE = 0.02
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
    def of(cls, ratios: Mapping[Placement, float]) -> Discrepancy:
        """Compute the posterior from logarithms of ratios.

        The prior is normal around no difference.
        """
        rows = numpy.array([shape_of(placement) for placement in ratios]).reshape(-1, _FEATURES)
        logs = numpy.array(list(ratios.values()))
        prior = numpy.eye(_FEATURES) / _DISCREPANCY_SPREAD**2

        def posterior(noise: float) -> tuple[Array, Array]:
            covariance = numpy.linalg.inv(prior + rows.T @ rows / noise**2)
            return covariance @ rows.T @ logs / noise**2, covariance

        mean, covariance = posterior(_NOISE)
        if len(logs) > _FEATURES:
            # What the shape does not explain is noise, of which there may be more than expected.
            misses = logs - rows @ mean
            unexplained = math.sqrt(float(misses @ misses) / (len(logs) - _FEATURES))
            mean, covariance = posterior(max(unexplained, _NOISE))
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
    return numpy.array([1.0, stages - 1.0, (held - stages) / held])


class Surrogate:
    """Predicts the seconds per minibatch of placements.

    Args:
        problem: what was declared.
        calibrated: the workload and the cluster as measurements have corrected them.
        method: the schedule, and the weight policy on it.
        minibatches: over how many a placement is measured.
        discrepancy: how measured seconds differ from simulated ones.
    """

    def __init__(
        self,
        problem: PlanningProblem,
        calibrated: Calibrated,
        method: Method,
        minibatches: int,
        discrepancy: Discrepancy | None = None,
    ) -> None:
        self.problem = replace(problem, workload=calibrated.workload, cluster=calibrated.cluster)
        self.discrepancy = discrepancy or Discrepancy.of({})
        self._method = method
        self._minibatches = minibatches
        self._known: dict[Placement, float] = {}

    def __call__(self, placement: Placement) -> float:
        """Return seconds per minibatch; infinite if it does not fit in memory."""
        return self.simulated(placement) * self.discrepancy.factor(placement)

    def screen(self, placement: Placement, limit: float) -> float:
        """Return what a call does, or the rule's seconds where these are above ``limit``.

        The rule takes a tenth of the simulator's time. Where every minibatch makes an update, it is
        a lower bound, except for rounding.
        """
        if placement not in self._known and self._method.accumulate == 1:
            by_rule = self._rule(placement)
            if not self._rule.fits(by_rule):
                return math.inf
            by_rule *= self.discrepancy.factor(placement)
            if by_rule > limit:
                return by_rule
        return self(placement)

    @cached_property
    def _rule(self) -> AnalyticObjective:
        return AnalyticObjective(self.problem)

    def simulated(self, placement: Placement) -> float:
        """Return what the calibrated simulator says, without the discrepancy; played once."""
        if placement not in self._known:
            self._known[placement] = self._played(placement)
        return self._known[placement]

    def _played(self, placement: Placement) -> float:
        problem = self.problem
        simulation = simulate(
            problem.workload,
            problem.cluster,
            placement,
            self._method,
            self._minibatches,
            problem.memory,
        )
        if simulation.without_room(problem.cluster) is not None:
            return math.inf
        return simulation.seconds_per_minibatch

    def with_discrepancy(self, measured: Mapping[Placement, float]) -> Surrogate:
        """Correct this surrogate by how far it is off for placements of known seconds.

        Returns the surrogate itself.
        """
        ratios = {}
        for placement, seconds in measured.items():
            simulated = self.simulated(placement)
            if math.isfinite(seconds) and math.isfinite(simulated):
                ratios[placement] = math.log(seconds / simulated)
        self.discrepancy = Discrepancy.of(ratios)
        return self

    @cached_property
    def _kinds(self) -> tuple[tuple[object, ...], ...]:
        cluster = self.problem.cluster
        limits = (limit or math.inf for limit in cluster.memory_bytes)
        return tuple(zip(cluster.speeds, cluster.host_of, limits, strict=True))

    def key(self, placement: Placement) -> tuple[object, ...]:
        """Return a key that does not tell equal accelerators apart."""
        return tuple(
            (stage.operators, tuple(sorted(self._kinds[a] for a in stage.accelerators)))
            for stage in placement.stages
        )

    def keys(self, placements: Iterable[Placement]) -> set[tuple[object, ...]]:
        """Return the keys of some placements."""
        return set(map(self.key, placements))
