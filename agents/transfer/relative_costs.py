"""What the rule says of a model on a cluster, without units: what a policy for many of them sees.

Everything is given relative to the *ideal*: the seconds per minibatch if the work were divided over
all accelerators to the last operation and messages took no time. So the same network reads a model
of a millisecond and one of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy
from numpy.typing import NDArray

from drlpp.costs.stage_cost import Array
from drlpp.costs.workload import Workload
from drlpp.specs.cluster import Cluster

SUMS = 4
"""What is added up for a stage: work, weights, incoming and outgoing bytes."""


@dataclass(frozen=True)
class RelativeTensor:
    """A transfer of the workload.

    Attributes:
        source: the operator that makes it.
        readers: the operators that read it.
        forward: ideals that its bytes take on the slowest link.
        backward: the same for its gradient.
        kept: whether the loss reads it too, which is computed with the last stage.
    """

    source: int
    readers: tuple[int, ...]
    forward: float
    backward: float
    kept: bool

    @property
    def both(self) -> float:
        """Ideals of the tensor and its gradient."""
        return self.forward + self.backward


@dataclass(frozen=True)
class RelativeCosts:
    """A workload and a cluster in ideals.

    With v the speeds relative to their mean, A accelerators, and the formulas of
    :mod:`drlpp.costs.stage_cost`, a stage on m accelerators, the slowest of speed v, takes::

        compute      (work + overhead + sharing · weights · [m > 1]) / (m v)
        all-reduce   2 (m − 1) / m · (weights / m + latency)
        messages     max(incoming, outgoing) / m

    ideals. The work of all operators adds up to A.

    Attributes:
        work: of every operator, ``(operators,)``.
        weights: ideals that the parameters of every operator take on the slowest link.
        tensors: what is sent where stages divide a tensor's readers and its source.
        latency: of the slowest link.
        overhead: work of a stage that it has whatever its operators.
        sharing: work of collecting gradients, for each unit of weights.
        speeds: of the accelerators, relative to their mean, ``(accelerators,)``.
    """

    work: Array
    weights: Array
    tensors: tuple[RelativeTensor, ...]
    latency: float
    overhead: float
    sharing: float
    speeds: Array

    @classmethod
    def of(cls, workload: Workload, cluster: Cluster) -> RelativeCosts:
        """Compute the costs of a workload on a cluster.

        All links are taken to be as slow as the slowest.
        """
        links = [*cluster.levels, *(host.network for host in cluster.hosts if host.network)]
        bandwidth = min(link.bandwidth_bytes_per_second for link in links)
        latency = max(link.latency_seconds for link in links)
        speeds = numpy.array(cluster.speeds)
        predicted = workload.parameter_bytes * workload.prediction_seconds_per_byte
        predicted = predicted * workload.method.moves_weights
        seconds = workload.seconds + workload.update_seconds + predicted
        # A model without any work has no ideal; then every placement is as good as any other.
        ideal = max(float(seconds.sum()), 1e-12) / float(speeds.sum())
        speed = float(speeds.mean())
        overhead = (
            workload.forward_overhead_seconds
            + workload.backward_overhead_seconds
            + workload.update_overhead_seconds
        )
        return cls(
            work=seconds / (ideal * speed),
            weights=workload.parameter_bytes / (bandwidth * ideal),
            tensors=tuple(
                RelativeTensor(
                    source=transfer.members[0],
                    readers=tuple(m for m in transfer.members[1:] if m < len(workload)),
                    forward=transfer.forward_bytes / (bandwidth * ideal),
                    backward=transfer.backward_bytes / (bandwidth * ideal),
                    kept=len(workload) in transfer.members[1:],
                )
                for transfer in (*workload.transfers, *workload.tied_transfers())
            ),
            latency=latency / ideal,
            overhead=overhead / (ideal * speed),
            sharing=workload.sharing_seconds_per_byte * bandwidth / speed,
            speeds=speeds / speed,
        )

    @cached_property
    def made_by(self) -> tuple[tuple[int, ...], ...]:
        """The tensors that every operator makes, as indices of ``tensors``."""
        found: list[list[int]] = [[] for _ in self.work]
        for index, tensor in enumerate(self.tensors):
            found[tensor.source].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def read_by(self) -> tuple[tuple[int, ...], ...]:
        """The tensors that every operator reads."""
        found: list[list[int]] = [[] for _ in self.work]
        for index, tensor in enumerate(self.tensors):
            for reader in tensor.readers:
                found[reader].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def scale(self) -> Array:
        """What :func:`stage_ideals` needs of these costs: latency, overhead and sharing."""
        return numpy.array([self.latency, self.overhead, self.sharing])


def stage_ideals(sums: Array, replicas: Array, speeds: Array, scale: Array) -> Array:
    """Return the ideals per minibatch that stages take; the arguments are broadcast.

    Args:
        sums: work, weights, incoming, outgoing, ``(…, 4)``.
        replicas: m, ``(…)``.
        speeds: of the slowest replica, relative to the mean, ``(…)``.
        scale: of their costs, ``(…, 3)``.
    """
    work, weights, incoming, outgoing = (sums[..., i] for i in range(SUMS))
    latency, overhead, sharing = (scale[..., i] for i in range(3))
    shared = sharing * weights * (replicas > 1)
    compute = (work + overhead + shared) / (replicas * speeds)
    all_reduce = 2 * (replicas - 1) / replicas * (weights / replicas + latency)
    messages = numpy.maximum(incoming, outgoing) / replicas
    found: Array = numpy.maximum(numpy.maximum(compute, all_reduce), messages)
    return found


def ideals_by_replicas(sums: Array, scale: Array, most: int) -> Array:
    """Return :func:`stage_ideals` of stages on 1 … ``most`` accelerators of mean speed.

    Args:
        sums: ``(stages, 4)``.
        scale: ``(stages, 3)``.
        most: the largest number of replicas.

    Returns:
        ``(stages, most)``.
    """
    replicas = numpy.arange(1, most + 1, dtype=float)
    return stage_ideals(sums[:, None], replicas, numpy.ones(1), scale[:, None])


def replicas_needed(
    by_replicas: Array, targets: Array, accelerators: NDArray[numpy.int64]
) -> Array:
    """Return the fewest replicas with which a stage keeps within each target.

    They are A + 1 if none do.

    Args:
        by_replicas: of :func:`ideals_by_replicas`, ``(stages, most)``.
        targets: ``(stages, targets)``.
        accelerators: A, ``(stages,)``.

    Returns:
        ``(stages, targets)``.
    """
    most = by_replicas.shape[1]
    within = by_replicas[:, :, None] <= targets[:, None] * (1 + 1e-9)
    within &= (numpy.arange(1, most + 1) <= accelerators[:, None])[:, :, None]
    first = within.argmax(axis=1) + 1.0
    return numpy.where(within.any(axis=1), first, accelerators[:, None] + 1.0)


def logarithm(ideals: Array) -> Array:
    """Return half of log10, from −2 to 2.

    Below 1e-4 ideals a cost is none, above 1e4 it is too much.
    """
    found: Array = numpy.log10(numpy.minimum(numpy.maximum(ideals, 1e-4), 1e4)) / 2
    return found
