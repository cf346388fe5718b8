r"""Correcting a profile and a cluster by what measurements tell besides seconds per minibatch.

A measurement names the time that every worker was busy. For a worker of relative speed v that
holds the operators S on one of m replicas, that is, for each minibatch of its own,

    y = e^c (Σ_{o ∈ S} t_o e^{x_o} + h e^{x_h} + b_S e^{x_b}) / (v e^{x_v})

with c common to everything (a profile of a faster device, or a mere guess), t_o the declared
seconds of operator o, h those of a stage's passes besides its operators, and b_S what its
parameters cost (update, prediction, collecting gradients). The corrections c and x have a normal
prior around 0: whoever has measured nothing believes what was declared. ln y is observed with some
noise, so the most probable x is a least-squares problem, solved by Gauss-Newton, and what is left
uncertain is the normal distribution around it. Operators that were always in the same stage are
corrected together; what tells them apart is a measurement that separates them.

CPU workers that share cores are busy for longer than their work takes. Their busy times are
divided by what the simulator says of that, with the costs as they were declared.

Links are corrected by the seconds of single messages, latency and bandwidth by level; the memory
of stages by the peak memory of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy
from numpy.random import Generator
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from drlpp.costs.analytic_model import pipeline_of
from drlpp.costs.memory import DEFAULT_MEMORY, MemoryModel
from drlpp.costs.stage_work import Array, StageWork
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import LinkUsage, Measurement, WorkerUsage
from drlpp.placement.placement import Placement
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link

_ITERATIONS = 30
_HALVINGS = 6
_SAME_SPEED = 0.03
"""Accelerators whose speeds differ by less count as equal, or planners would have to tell all
apart."""

_SMALLEST_OVERHEAD = 1e-3
"""The least overhead of a pass without a declared one, as a part of an even share of the work,
before it is known better."""


_SMALLEST_LATENCY = 1e-6


@dataclass(frozen=True)
class Spread:
    """Standard deviations of logarithms: how far off what was declared may be.

    Attributes:
        everything: of all seconds together.
        operators: of an operator's seconds.
        stages: of a stage's overhead, and of what parameters cost.
        speeds: of an accelerator's speed.
        links: of a link's latency and bandwidth.
        noise: of a measured busy time or link time.
    """

    everything: float = 3.0
    operators: float = 0.4
    stages: float = 1.0
    speeds: float = 0.4
    links: float = 1.0
    noise: float = 0.03


@dataclass(frozen=True)
class Calibrated:
    """A workload and a cluster as measurements have corrected them."""

    workload: Workload
    cluster: Cluster


@dataclass(frozen=True)
class _Busy:
    """Seconds that a worker is busy for a minibatch of its own.

    ``noise`` is the standard deviation of their logarithm.
    """

    operators: tuple[int, ...]
    parameter_seconds: float
    accelerator: int
    seconds: float
    noise: float


@dataclass
class Calibration:
    """What was declared, and everything observed since.

    Args:
        workload: as it was declared.
        cluster: as it was declared.
        memory: what a stage keeps.
        method: the schedule that is run.
        spread: how far off these may be.
    """

    workload: Workload
    cluster: Cluster
    memory: MemoryModel = DEFAULT_MEMORY
    method: Method = DEFAULT_METHOD
    spread: Spread = field(default_factory=Spread)

    def __post_init__(self) -> None:
        workload = self.workload
        even = float(workload.seconds.sum()) / self.cluster.accelerators
        declared = workload.forward_overhead_seconds + workload.backward_overhead_seconds
        self._overhead_seconds = max(declared, _SMALLEST_OVERHEAD * even)
        self._busy: list[_Busy] = []
        self._links: list[LinkUsage] = []
        self._memory: list[tuple[float, float]] = []
        self._corrections = numpy.zeros(len(workload) + 3 + self.cluster.accelerators)
        self._factor: tuple[Array, bool] | None = None

    def observe(self, placement: Placement, measurement: Measurement) -> None:
        """Take in what a placement's workers and links did; one without workers tells nothing."""
        stages = placement.stages
        works = [
            self.workload.stage(stage.operators, last=index == len(stages) - 1)
            for index, stage in enumerate(stages)
        ]
        stretch = self._stretch(placement, measurement.minibatches)
        for usage in measurement.workers:
            stage = stages[usage.stage]
            replicas = len(stage.accelerators)
            if usage.busy_seconds > 0:
                work = works[usage.stage]
                base = float(self.workload.seconds[list(stage.operators)].sum())
                overhead = self.workload.microbatches * (
                    self.workload.forward_overhead_seconds + self.workload.backward_overhead_seconds
                )
                updates = work.updates_in_a_round(replicas) * float(work.update_seconds)
                extra = float(work.seconds) - base - overhead + updates
                extra += float(work.sharing_seconds) * (replicas > 1)
                seconds = usage.busy_seconds * replicas / measurement.minibatches
                seconds /= stretch.get(usage.worker, 1.0)
                # Without whole rounds, a replica had one minibatch more or less than its share.
                uneven = (
                    replicas / measurement.minibatches * (measurement.minibatches % replicas > 0)
                )
                noise = math.hypot(self.spread.noise, uneven)
                self._busy.append(
                    _Busy(stage.operators, max(extra, 0.0), usage.worker, seconds, noise)
                )
        self._links += [usage for usage in measurement.links if usage.seconds > 0]
        self._observe_memory(placement, works, measurement.workers)
        self._factor = None

    def _stretch(self, placement: Placement, minibatches: int) -> dict[int, float]:
        """Return by how much sharing cores makes workers busy for longer.

        The result is empty where no cores are shared.
        """
        if not any(self.cluster.cores_of):
            return {}
        alone = self.cluster.with_hosts(
            host.model_copy(update={"cores": None}) for host in self.cluster.hosts
        )
        shared, free = (
            simulate(self.workload, cluster, placement, self.method, minibatches)
            for cluster in (self.cluster, alone)
        )
        return {
            one.worker: max(
                1.0,
                (one.busy_seconds / shared.window.length)
                / (other.busy_seconds / free.window.length),
            )
            for one, other in zip(shared.workers, free.workers, strict=True)
            if other.busy_seconds > 0
        }

    def _observe_memory(
        self, placement: Placement, works: Sequence[StageWork], workers: Sequence[WorkerUsage]
    ) -> None:
        in_flight = self.method.in_flight(pipeline_of(self.workload, placement))
        for usage in workers:
            stage = usage.stage
            replicas = len(placement.stages[stage].accelerators)
            needed = float(self.memory.stage_bytes(works[stage], in_flight[stage], replicas))
            self._memory.append((needed, float(usage.peak_memory_bytes)))

    def fit(self) -> Calibrated:
        """Return the most probable workload and cluster."""
        self._solve()
        return self._calibrated(self._corrections)

    def sample(self, draw: Generator) -> Calibrated:
        """Draw a workload and speeds that are as probable as what was observed leaves them.

        Links and memory are the most probable ones.
        """
        factor, lower = self._solve()
        standard = draw.standard_normal(len(self._corrections))
        deviation = solve_triangular(factor, standard, lower=lower, trans="T" if lower else "N")
        return self._calibrated(self._corrections + deviation)

    def _solve(self) -> tuple[Array, bool]:
        """Update the most probable corrections; returns their precision, factorised."""
        if self._factor is None:
            prior = self._prior_precision()
            rows, logs = self._rows()
            weights = numpy.array([busy.noise for busy in self._busy]) ** -2.0

            def badness(x: Array) -> float:
                misses = logs - self._linearised(x, rows)[0]
                return float(weights @ misses**2 + prior @ x**2)

            x = self._corrections
            for _ in range(_ITERATIONS):
                predicted, jacobian = self._linearised(x, rows)
                precision = numpy.diag(prior) + jacobian.T @ (weights[:, None] * jacobian)
                gradient = jacobian.T @ (weights * (logs - predicted)) - prior * x
                self._factor = cho_factor(precision, lower=True)
                step = cho_solve(self._factor, gradient)
                if float(numpy.abs(step).max()) < 1e-4:
                    break
                before = badness(x)
                for _ in range(_HALVINGS):
                    if badness(x + step) <= before:
                        break
                    step = step / 2
                x = x + step
            self._corrections = x
        assert self._factor is not None
        return self._factor

    def _prior_precision(self) -> Array:
        operators, accelerators = len(self.workload), self.cluster.accelerators
        deviation = numpy.concatenate(
            [
                numpy.full(operators, self.spread.operators),
                numpy.full(2, self.spread.stages),
                [self.spread.everything],
                numpy.full(accelerators, self.spread.speeds),
            ]
        )
        return deviation**-2.0

    def _rows(self) -> tuple[Array, Array]:
        """Return what every observation adds up, and its logarithm at the declared speed.

        The parts that are added up are as declared.
        """
        operators = len(self.workload)
        rows = numpy.zeros((len(self._busy), len(self._corrections)))
        logs = numpy.zeros(len(self._busy))
        for index, busy in enumerate(self._busy):
            members = list(busy.operators)
            rows[index, members] = self.workload.seconds[members]
            rows[index, operators] = self.workload.microbatches * self._overhead_seconds
            rows[index, operators + 1] = busy.parameter_seconds
            rows[index, operators + 2] = 1.0
            rows[index, operators + 3 + busy.accelerator] = -1.0
            logs[index] = numpy.log(busy.seconds * self.cluster.speeds[busy.accelerator])
        return rows, logs

    def _linearised(self, x: Array, rows: Array) -> tuple[Array, Array]:
        """Return logarithms of busy seconds for corrections ``x``, and their derivatives."""
        split = len(self.workload) + 2
        parts = rows[:, :split] * numpy.exp(x[:split])
        totals = parts.sum(axis=1)
        predicted = numpy.log(totals) + rows[:, split:] @ x[split:]
        return predicted, numpy.concatenate([parts / totals[:, None], rows[:, split:]], axis=1)

    def _calibrated(self, corrections: Array) -> Calibrated:
        workload = self.workload
        operators = len(workload)
        factors = numpy.exp(corrections)
        own, overhead, parameters = (
            factors[part] * factors[operators + 2]
            for part in (slice(operators), operators, operators + 1)
        )
        declared = workload.forward_overhead_seconds + workload.backward_overhead_seconds
        share = workload.forward_overhead_seconds / declared if declared else 1 / 3
        return Calibrated(
            replace(
                workload,
                forward_seconds=workload.forward_seconds * own,
                backward_seconds=workload.backward_seconds * own,
                update_seconds=workload.update_seconds * parameters,
                forward_overhead_seconds=float(share * self._overhead_seconds * overhead),
                backward_overhead_seconds=float((1 - share) * self._overhead_seconds * overhead),
                update_overhead_seconds=float(workload.update_overhead_seconds * parameters),
                prediction_seconds_per_byte=float(
                    workload.prediction_seconds_per_byte * parameters
                ),
                sharing_seconds_per_byte=float(workload.sharing_seconds_per_byte * parameters),
            ),
            self._cluster(factors[operators + 3 :]),
        )

    def _cluster(self, factors: Array) -> Cluster:
        cluster = self.cluster.with_speeds(
            merged(numpy.array(self.cluster.speeds) * factors).tolist()
        )
        return Cluster(
            hosts=self._with_room(cluster),
            within_host=self._corrected(0, cluster.within_host),
            between_hosts=cluster.between_hosts and self._corrected(1, cluster.between_hosts),
            between_racks=cluster.between_racks and self._corrected(2, cluster.between_racks),
        )

    def _corrected(self, level: int, declared: Link) -> Link:
        """Return the link of a level, by least squares over its messages' relative errors.

        What a host's own network adds is taken as declared.
        """
        found = [u for u in self._links if self.cluster.level(u.sender, u.receiver) == level]
        if not found:
            return declared
        seconds = numpy.array([usage.seconds for usage in found])
        ways = [self.cluster.link(usage.sender, usage.receiver) for usage in found]
        latencies = numpy.array([max(way.latency_seconds, _SMALLEST_LATENCY) for way in ways])
        bandwidths = numpy.array([way.bandwidth_bytes_per_second for way in ways])
        sizes = numpy.array([usage.bytes_ for usage in found])
        declared_parts = numpy.stack([latencies, sizes / bandwidths], axis=1)
        relative = declared_parts / seconds[:, None]
        prior = (self.spread.noise / self.spread.links) ** 2
        normal = relative.T @ relative + prior * numpy.eye(2)
        factors = numpy.linalg.solve(normal, relative.T @ numpy.ones(len(found)) + prior)
        latency, inverse_bandwidth = numpy.clip(factors, 1e-3, 1e3)
        return Link(
            bandwidth_bytes_per_second=declared.bandwidth_bytes_per_second
            / float(inverse_bandwidth),
            latency_seconds=max(declared.latency_seconds, _SMALLEST_LATENCY) * float(latency),
        )

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
        return tuple(
            host
            if host.memory_bytes is None
            else host.model_copy(
                update={"memory_bytes": max((host.memory_bytes - rest) / scale, 1.0)}
            )
            for host in cluster.hosts
        )


def merged(speeds: Array) -> Array:
    """Return the speeds; those that hardly differ are replaced by their mean.

    Neighbours by size belong together as long as they are within 3% of the smallest of them.
    """
    order = numpy.argsort(speeds)
    result = speeds.astype(float).copy()
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or speeds[order[end]] > speeds[order[begin]] * (1 + _SAME_SPEED):
            result[order[begin:end]] = speeds[order[begin:end]].mean()
            begin = end
    return result
