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

Links are corrected by the seconds of single messages, latency and bandwidth by level; the memory
of stages by the peak memory of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy
from numpy.random import Generator
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from drlpp.costs.analytic_model import pipeline_of
from drlpp.costs.memory import DEFAULT_MEMORY, MemoryModel
from drlpp.costs.stage_work import Array, StageWork
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import LinkUsage, Measurement, WorkerUsage
from drlpp.planners.candidates.judge import memory_under
from drlpp.planners.model_based.busy_times import BusyTime, busy_times
from drlpp.planners.model_based.link_correction import LinkCorrection, corrected
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.specs.cluster import Cluster, Host

_ITERATIONS = 30
_HALVINGS = 6
_FAITH = 4.0
"""How many observations the declared noise counts for, against what the others say of it."""

_SAME_SPEED = 0.03
"""Accelerators whose speeds differ by less count as equal, or planners would have to tell all
apart."""

_SMALLEST_OVERHEAD = 1e-3
"""The least overhead of a pass without a declared one, as a part of an even share of the work,
before it is known better."""


@dataclass(frozen=True)
class Spread:
    """Standard deviations of logarithms: how far off what was declared may be.

    Attributes:
        everything: of all seconds together.
        operators: of an operator's seconds, besides those of its kind.
        kinds: of the seconds of all operators of a kind.
        stages: of a stage's overhead, and of what parameters cost.
        speeds: of an accelerator's speed.
        links: of a link's latency and bandwidth.
        noise: of a measured busy time or link time.
    """

    everything: float = 3.0
    operators: float = 0.3
    kinds: float = 0.25
    stages: float = 1.0
    speeds: float = 0.4
    links: float = 1.0
    noise: float = 0.03


@dataclass(frozen=True)
class Calibrated:
    """A workload and a cluster as measurements have corrected them."""

    workload: Workload
    cluster: Cluster


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
        self._busy: list[BusyTime] = []
        self._links: list[LinkUsage] = []
        self._memory: list[tuple[float, float]] = []
        names = sorted(set(workload.kinds))
        self._kinds = numpy.zeros((len(workload), len(names)))
        for operator, kind in enumerate(workload.kinds):
            self._kinds[operator, names.index(kind)] = 1.0
        unknown = len(workload) + 3 + self.cluster.accelerators + len(names)
        self._corrections = numpy.zeros(unknown)
        self._factor: tuple[Array, bool] | None = None

    def observe(self, candidate: Candidate, measurement: Measurement) -> None:
        """Take in what a candidate's workers and links did; one without workers tells nothing."""
        placement, method = candidate.placement, candidate.method
        workload = self.workload.with_method(method)
        stages = placement.stages
        in_flight = method.in_flight(pipeline_of(workload, placement))
        works = [
            workload.stage(stage.operators, last=index == len(stages) - 1)
            for index, stage in enumerate(stages)
        ]
        self._busy += busy_times(
            workload, candidate, measurement, works, in_flight, self.spread.noise
        )
        self._links += [usage for usage in measurement.links if usage.seconds > 0]
        self._observe_memory(candidate, works, in_flight, measurement.workers)
        self._factor = None

    def _observe_memory(
        self,
        candidate: Candidate,
        works: Sequence[StageWork],
        in_flight: Sequence[int],
        workers: Sequence[WorkerUsage],
    ) -> None:
        placement = candidate.placement
        memory = memory_under(self.memory, self.method, candidate.method)
        for usage in workers:
            held = placement.stages_of(usage.worker)
            replicas = len(placement.stages[held[0]].accelerators)
            # Of a folded pipeline no more than a minibatch is in flight, as all of them flush.
            parts = [1 if len(held) > 1 else in_flight[stage] for stage in held]
            needed = sum(
                float(memory.stage_bytes(works[stage], count, replicas, stage))
                for stage, count in zip(held, parts, strict=True)
            )
            self._memory.append((needed, float(usage.peak_memory_bytes)))

    def fit(self) -> Calibrated:
        """Return the most probable workload and cluster."""
        self._solve()
        return self._calibrated(self._corrections, [link.mean for link in self._levels()])

    def sample(self, draw: Generator) -> Calibrated:
        """Draw a workload, speeds and links that are as probable as what was observed leaves them.

        Memory is the most probable.
        """
        factor, lower = self._solve()
        standard = draw.standard_normal(len(self._corrections))
        deviation = solve_triangular(factor, standard, lower=lower, trans="T" if lower else "N")
        links = [link.drawn(draw) for link in self._levels()]
        return self._calibrated(self._corrections + deviation, links)

    def _solve(self) -> tuple[Array, bool]:
        """Update the most probable corrections; returns their precision, factorised."""
        if self._factor is None:
            rows, logs = self._rows()
            noise = numpy.array([busy.noise for busy in self._busy])
            factor, misses, fitted = self._fit(rows, logs, noise**-2.0)
            # What does not fit says how large the noise is, as far as more is known than fitted.
            known = max(len(logs) - fitted, 0.0)
            scale = (_FAITH + float((misses / noise) @ (misses / noise))) / (_FAITH + known)
            if known:
                factor, _, _ = self._fit(rows, logs, noise**-2.0 / scale)
            self._factor = factor
        return self._factor

    def _fit(
        self, rows: Array, logs: Array, weights: Array
    ) -> tuple[tuple[Array, bool], Array, float]:
        """Find the most probable corrections for weights of the observations.

        Returns their precision, factorised, what is missed, and how much of what is observed the
        corrections take up.
        """
        prior = self._prior_precision()

        def badness(x: Array) -> float:
            misses = logs - self._linearised(x, rows)[0]
            return float(weights @ misses**2 + prior @ x**2)

        x = self._corrections
        for _ in range(_ITERATIONS):
            predicted, jacobian = self._linearised(x, rows)
            observed = jacobian.T @ (weights[:, None] * jacobian)
            factor = cho_factor(numpy.diag(prior) + observed, lower=True)
            step = cho_solve(factor, jacobian.T @ (weights * (logs - predicted)) - prior * x)
            if float(numpy.abs(step).max()) < 1e-4:
                break
            before = badness(x)
            for _ in range(_HALVINGS):
                if badness(x + step) <= before:
                    break
                step = step / 2
            x = x + step
        self._corrections = x
        fitted = float(numpy.trace(cho_solve(factor, observed)))
        return factor, logs - self._linearised(x, rows)[0], fitted

    def _prior_precision(self) -> Array:
        operators, accelerators = len(self.workload), self.cluster.accelerators
        deviation = numpy.concatenate(
            [
                numpy.full(operators, self.spread.operators),
                numpy.full(2, self.spread.stages),
                [self.spread.everything],
                numpy.full(accelerators, self.spread.speeds),
                numpy.full(self._kinds.shape[1], self.spread.kinds),
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
            rows[index, members] = busy.operator_seconds
            rows[index, operators] = busy.passes * self._overhead_seconds
            rows[index, operators + 1] = busy.parameter_seconds
            rows[index, operators + 2] = 1.0
            rows[index, operators + 3 + busy.accelerator] = -1.0
            logs[index] = numpy.log(busy.seconds * self.cluster.speeds[busy.accelerator])
        return rows, logs

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

    def _levels(self) -> list[LinkCorrection]:
        """Return what is known of the links within hosts, between hosts, between racks."""
        cluster, noise, spread = self.cluster, self.spread.noise, self.spread.links
        levels = [cluster.level(usage.sender, usage.receiver) for usage in self._links]
        return [
            LinkCorrection.of(
                cluster,
                [usage for usage, found in zip(self._links, levels, strict=True) if found == level],
                noise,
                spread,
            )
            for level in range(3)
        ]

    def _calibrated(self, corrections: Array, links: Sequence[Array]) -> Calibrated:
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
            self._cluster(factors[operators + 3 :], links),
        )

    def _cluster(self, factors: Array, links: Sequence[Array]) -> Cluster:
        cluster = self.cluster.with_speeds(
            merged(numpy.array(self.cluster.speeds) * factors).tolist()
        )
        within, between, racks = links
        return Cluster(
            hosts=self._with_room(cluster),
            within_host=corrected(cluster.within_host, within),
            between_hosts=cluster.between_hosts and corrected(cluster.between_hosts, between),
            between_racks=cluster.between_racks and corrected(cluster.between_racks, racks),
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
