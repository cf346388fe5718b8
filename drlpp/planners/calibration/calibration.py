r"""Correcting a profile and a cluster by what measurements tell besides seconds per minibatch.

A measurement names the time that every worker was busy. For a worker of relative speed v that
holds the operators S on one of m replicas, that is, for each minibatch of its own,

    y = e^c (Σ_{o ∈ S} t_o e^{x_o + z_k(o)} + h e^{x_h} + b_S e^{x_b}) / (v e^{x_v})

with c common to everything (a profile of a faster device, or a mere guess), t_o the declared
seconds of operator o, under the method that was run, z_k what all operators of its kind k are off
by, h the seconds of a stage's passes besides its operators, and b_S what its parameters cost
(update, prediction, collecting gradients). The corrections c, x and z have a normal
prior around 0: whoever has measured nothing believes what was declared. ln y is observed with some
noise, so the most probable x is a least-squares problem, solved by Gauss-Newton, and what is left
uncertain is the normal distribution around it. Operators that were always in the same stage are
corrected together; what tells them apart is a measurement that separates them.

How far off costs and speeds are declared is learned too: the deviations of the prior and of the
noise are multiplied by scales, which have a log-normal prior around 1. How probable scales are
after what was observed is the marginal likelihood by Laplace's approximation, on a grid
(:mod:`drlpp.planners.calibration.scales`).

Links are corrected by the seconds of single messages, latency and bandwidth by level; the memory
of stages by the peak memory of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy
from numpy.random import Generator

from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.stage_cost import Array
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import LinkUsage, Measurement
from drlpp.planners.calibration.scales import DECLARED, NOISE, Scales, ScalesPosterior
from drlpp.planners.problem import PlanningProblem
from drlpp.specs.cluster import Cluster, Host, Link, merged

# Standard deviations of logarithms: how far off what was declared may be, and what is measured.
# Those of operators and their kinds, of speeds, and of busy times have a scale each.
_EVERYTHING, _OPERATOR, _KIND, _STAGE, _SPEED, _LINK = 3.0, 0.3, 0.25, 1.0, 0.4, 1.0
_NOISE = 0.03
"""Of a measured busy time or link time."""

_UNSCALED, _COSTS, _SPEEDS = range(3)

_ITERATIONS = 30
_HALVINGS = 6
_LINEARISATIONS = 4

_SAME_SPEED = 0.03
"""Accelerators whose speeds differ by less count as equal, or planners would have to tell all
apart."""

_SMALLEST_OVERHEAD = 1e-3
"""The least overhead of a pass without a declared one, as a part of an even share of the work,
before it is known better."""


_SMALLEST_LATENCY = 1e-6
_WIDEST = 0.5
"""The largest standard deviation of a logarithm that is drawn from."""


class Calibration:
    """What was declared, and everything observed since.

    Args:
        declared: the workload, the cluster, and what a stage keeps.
    """

    def __init__(self, declared: PlanningProblem) -> None:
        self.declared = declared
        self.workload, self.cluster = declared.workload, declared.cluster
        workload, accelerators = self.workload, self.cluster.accelerators
        even = float(workload.seconds.sum()) / accelerators
        overhead = workload.forward_overhead_seconds + workload.backward_overhead_seconds
        self._overhead_seconds = max(overhead, _SMALLEST_OVERHEAD * even)
        # Of every busy worker what it adds up, as declared, and the logarithm of its seconds.
        self._rows: list[Array] = []
        self._logs: list[float] = []
        self._noise: list[float] = []
        self._links: list[LinkUsage] = []
        self._memory: list[tuple[float, float]] = []
        names = sorted(set(workload.kinds))
        self._kinds = numpy.zeros((len(workload), len(names)))
        for operator, kind in enumerate(workload.kinds):
            self._kinds[operator, names.index(kind)] = 1.0
        counts = (len(workload), 2, 1, accelerators, len(names))
        self._deviations = numpy.repeat((_OPERATOR, _STAGE, _EVERYTHING, _SPEED, _KIND), counts)
        self._groups = numpy.repeat((_COSTS, _UNSCALED, _UNSCALED, _SPEEDS, _COSTS), counts)
        self._corrections = numpy.zeros(len(self._deviations))
        self._scales: ScalesPosterior | None = None
        self._solved: dict[Scales, tuple[Array, Array]] = {}

    def observe(self, candidate: Candidate, measurement: Measurement) -> None:
        """Take in what a candidate's workers and links did; one without workers tells nothing."""
        placement, method = candidate.placement, candidate.method
        workload, stages = self.workload.with_method(method), placement.stages
        minibatches, operators = measurement.minibatches, len(workload)
        memory = replace(self.declared.memory, method=method)
        placed = PlacedStages(workload, placement)
        in_flight, of_stages = method.in_flight(placed.pipeline), placed.memory_bytes(memory)
        works = [
            workload.stage(stage.operators, last=index == len(stages) - 1)
            for index, stage in enumerate(stages)
        ]
        overhead = method.microbatches * (
            workload.forward_overhead_seconds + workload.backward_overhead_seconds
        )
        # What short runs took longer than operators alone the simulator multiplies with again.
        longer = workload.run_factors(placement)
        for usage in measurement.workers:
            held = placement.stages_of(usage.worker)
            replicas = len(stages[held[0]].accelerators)
            needed = float(of_stages[list(held)].sum())
            self._memory.append((needed, float(usage.peak_memory_bytes)))
            if usage.busy_seconds <= 0:
                continue
            row, extra = numpy.zeros(len(self._corrections)), 0.0
            for stage in held:
                work, chosen = works[stage], list(stages[stage].operators)
                seconds = row[chosen] = workload.seconds[chosen]
                # What has just been computed is not computed again.
                if method.recomputes(stage) and in_flight[stage] > 1:
                    row[chosen] = seconds + workload.forward_seconds[chosen]
                updates = float(work.updates_in_a_round(replicas) * work.update_seconds)
                of_parameters = float(work.seconds) - float(seconds.sum()) - overhead
                of_parameters += updates + float(work.sharing_seconds) * (replicas > 1)
                extra += max(of_parameters, 0.0)
            row[operators] = len(held) * method.microbatches * self._overhead_seconds
            row[operators + 1 : operators + 3] = extra, 1.0
            row[operators + 3 + usage.worker] = -1.0
            busy = usage.busy_seconds * replicas / minibatches / longer[usage.stage].passes
            # Without whole rounds, a replica had one minibatch more or less than its share.
            uneven = replicas / minibatches * (minibatches % replicas > 0)
            self._rows.append(row)
            self._logs.append(float(numpy.log(busy * self.cluster.speeds[usage.worker])))
            self._noise.append(math.hypot(_NOISE, uneven))
        self._links += [usage for usage in measurement.links if usage.seconds > 0]
        self._scales = None

    def slowness(self, candidate: Candidate, measurement: Measurement) -> dict[int, float]:
        """Return how many times as long as declared every worker computed, by probable costs."""
        corrections = self._solve(self._believed().most_probable)[0] * (self._groups != _SPEEDS)
        other = Calibration(self.declared)
        other.observe(candidate, measurement)
        rows, logs, _ = other._observed()
        ratios = numpy.exp(logs - self._linearised(corrections, rows)[0])
        busy = [usage.worker for usage in measurement.workers if usage.busy_seconds > 0]
        return dict(zip(busy, ratios.tolist(), strict=True))

    def fit(self) -> PlanningProblem:
        """Return the most probable workload and cluster."""
        corrections, _ = self._solve(self._believed().most_probable)
        return self._calibrated(corrections, [mean for mean, _ in self._levels()])

    def sample(self, draw: Generator) -> PlanningProblem:
        """Draw workload, speeds and links as probable as what was observed leaves them."""
        corrections, root = self._solve(self._believed().sample(draw))
        deviation = root.T @ draw.standard_normal(len(corrections))
        links = [drawn_factors(*found, draw) for found in self._levels()]
        return self._calibrated(corrections + deviation, links)

    def _believed(self) -> ScalesPosterior:
        """Return what is known of the scales of costs, of speeds and of the noise."""
        if self._scales is not None:
            return self._scales
        rows, logs, noise = self._observed()
        scales: Scales = (1.0, 1.0, 1.0)
        for _ in range(_LINEARISATIONS):
            self._solved.clear()
            x, _ = self._solve(scales)
            predicted, jacobian = self._linearised(x, rows)
            own, costs, speeds = (
                (jacobian * (self._deviations**2 * (self._groups == group))) @ jacobian.T
                for group in (_UNSCALED, _COSTS, _SPEEDS)
            )
            misses = logs - predicted + jacobian @ x
            parts = ((costs, DECLARED), (speeds, DECLARED), (numpy.diag(noise**2), NOISE))
            posterior = ScalesPosterior(misses, parts, own)
            if scales == posterior.most_probable:
                break
            scales = posterior.most_probable
        self._corrections, self._scales = x, posterior
        return posterior

    def _observed(self) -> tuple[Array, Array, Array]:
        rows = numpy.array(self._rows).reshape(-1, len(self._corrections))
        return rows, numpy.array(self._logs), numpy.array(self._noise)

    def _solve(self, scales: Scales) -> tuple[Array, Array]:
        """Return the most probable corrections, and R with RᵀR their covariance."""
        if scales not in self._solved:
            costs, speeds, of_noise = scales
            rows, logs, noise = self._observed()
            factors = numpy.array([1.0, costs, speeds])[self._groups]
            prior = (factors * self._deviations) ** -2.0
            self._solved[scales] = self._fit(rows, logs, (of_noise * noise) ** -2.0, prior)
        return self._solved[scales]

    def _fit(self, rows: Array, logs: Array, weights: Array, prior: Array) -> tuple[Array, Array]:
        """Find the most probable corrections for weights of observations and of corrections."""

        def badness(x: Array) -> float:
            misses = logs - self._linearised(x, rows)[0]
            return float(weights @ misses**2 + prior @ x**2)

        x = self._corrections
        for _ in range(_ITERATIONS):
            predicted, jacobian = self._linearised(x, rows)
            observed = jacobian.T @ (weights[:, None] * jacobian)
            precision = numpy.diag(prior) + observed
            gradient = jacobian.T @ (weights * (logs - predicted)) - prior * x
            step = numpy.linalg.solve(precision, gradient)
            if float(numpy.abs(step).max()) < 1e-4:
                break
            before = badness(x)
            for _ in range(_HALVINGS):
                if badness(x + step) <= before:
                    break
                step = step / 2
            x = x + step
        return x, numpy.linalg.inv(numpy.linalg.cholesky(precision))

    def _linearised(self, x: Array, rows: Array) -> tuple[Array, Array]:
        """Return logarithms of busy seconds for corrections ``x``, and their derivatives."""
        operators, (_, kinds) = len(self.workload), self._kinds.shape
        split, end = operators + 2, len(x) - kinds
        logs = x[:split].copy()
        logs[:operators] += self._kinds @ x[end:]
        parts = rows[:, :split] * numpy.exp(logs)
        totals = parts.sum(axis=1)
        predicted = numpy.log(totals) + rows[:, split:end] @ x[split:end]
        shares = parts / totals[:, None]
        of_kinds = shares[:, :operators] @ self._kinds
        return predicted, numpy.concatenate([shares, rows[:, split:end], of_kinds], axis=1)

    def _levels(self) -> list[tuple[Array, Array]]:
        """Return what is known of the links within hosts and between hosts."""
        levels = [self.cluster.level(usage.sender, usage.receiver) for usage in self._links]
        of_levels = [
            [usage for usage, found in zip(self._links, levels, strict=True) if found == level]
            for level in range(2)
        ]
        return [link_factors(self.cluster, usages) for usages in of_levels]

    def _calibrated(self, corrections: Array, links: Sequence[Array]) -> PlanningProblem:
        workload = self.workload
        operators, accelerators = len(workload), self.cluster.accelerators
        kinds = corrections[operators + 3 + accelerators :]
        factors = numpy.exp(corrections[: operators + 3 + accelerators])
        factors[:operators] *= numpy.exp(self._kinds @ kinds)
        own, overhead, parameters = (
            factors[part] * factors[operators + 2]
            for part in (slice(operators), operators, operators + 1)
        )
        declared = workload.forward_overhead_seconds + workload.backward_overhead_seconds
        share = workload.forward_overhead_seconds / declared if declared else 1 / 3
        of_parameters: dict[str, Any] = {
            name: float(getattr(workload, name) * parameters)
            for name in (
                "update_overhead_seconds",
                "prediction_seconds_per_byte",
                "sharing_seconds_per_byte",
            )
        }
        corrected = replace(
            workload,
            forward_seconds=workload.forward_seconds * own,
            backward_seconds=workload.backward_seconds * own,
            update_seconds=workload.update_seconds * parameters,
            forward_overhead_seconds=float(share * self._overhead_seconds * overhead),
            backward_overhead_seconds=float((1 - share) * self._overhead_seconds * overhead),
            **of_parameters,
        )
        speeds = numpy.array(self.cluster.speeds) * factors[operators + 3 :]
        cluster = self.cluster.with_speeds(merged(speeds.tolist(), _SAME_SPEED))
        within, between = links
        corrected_cluster = Cluster(
            hosts=self._with_room(cluster),
            within_host=_corrected(cluster.within_host, within),
            between_hosts=cluster.between_hosts and _corrected(cluster.between_hosts, between),
        )
        return replace(self.declared, workload=corrected, cluster=corrected_cluster)

    def _with_room(self, cluster: Cluster) -> tuple[Host, ...]:
        """Return hosts with the memory limits of the formula: peak ≈ scale · needed + rest."""
        if not self._memory or all(limit is None for limit in cluster.memory_bytes):
            return cluster.hosts
        needed, peak = numpy.array(self._memory).T
        scale, rest = 1.0, 0.0
        if numpy.ptp(needed) > 0.1 * needed.max():
            scale, rest = numpy.polyfit(needed, peak, 1)
        if scale <= 0 or rest < 0:
            scale, rest = float((peak / numpy.maximum(needed, 1.0)).max()), 0.0

        def corrected(limit: float) -> float:
            # What ran in as much memory has room, whatever the formula says.
            ran = needed[peak <= limit].max(initial=1.0)
            return max((limit - rest) / scale, float(ran))

        return tuple(
            host
            if host.memory_bytes is None
            else host.model_copy(update={"memory_bytes": corrected(host.memory_bytes)})
            for host in cluster.hosts
        )


def link_factors(cluster: Cluster, usages: Sequence[LinkUsage]) -> tuple[Array, Array]:
    """Return the mean and covariance of factors of a level's latency and seconds per byte.

    They are found by least squares over the messages' relative errors. What a host's own network
    adds is taken as declared.
    """
    prior = (_NOISE / _LINK) ** 2
    normal, right = prior * numpy.eye(2), numpy.full(2, prior)
    if usages:
        seconds = numpy.array([usage.seconds for usage in usages])
        ways = [cluster.link(usage.sender, usage.receiver) for usage in usages]
        latencies = numpy.array([max(way.latency_seconds, _SMALLEST_LATENCY) for way in ways])
        bandwidths = numpy.array([way.bandwidth_bytes_per_second for way in ways])
        sizes = numpy.array([usage.bytes_ for usage in usages])
        parts = numpy.stack([latencies, sizes / bandwidths], axis=1)
        relative = parts / seconds[:, None]
        normal = normal + relative.T @ relative
        right = right + relative.T @ numpy.ones(len(usages))
    mean = numpy.clip(numpy.linalg.solve(normal, right), 1e-3, 1e3)
    return mean, numpy.asarray(_NOISE**2 * numpy.linalg.inv(normal), dtype=float)


def drawn_factors(mean: Array, covariance: Array, draw: Generator) -> Array:
    """Draw factors; they are above 0."""
    relative = covariance / numpy.outer(mean, mean)
    # What is hardly known is drawn within bounds, and that both are off together is kept.
    deviation = numpy.sqrt(numpy.diag(relative))
    narrow = numpy.minimum(1.0, _WIDEST / numpy.maximum(deviation, 1e-12))
    relative = relative * numpy.outer(narrow, narrow)
    logs = draw.multivariate_normal(numpy.zeros(2), relative, method="svd")
    factors: Array = mean * numpy.exp(logs)
    return factors


def _corrected(link: Link, factors: Array) -> Link:
    """Return a link with other latency and seconds per byte."""
    latency, inverse_bandwidth = factors
    return Link(
        bandwidth_bytes_per_second=link.bandwidth_bytes_per_second / float(inverse_bandwidth),
        latency_seconds=max(link.latency_seconds, _SMALLEST_LATENCY) * float(latency),
    )
