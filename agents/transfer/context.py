"""What a policy sees of models on clusters: features of operators, accelerators and the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from drlpp.agents.transfer.relative_costs import RelativeCosts, ideals_by_replicas, logarithm
from drlpp.costs.stage_cost import Array
from drlpp.costs.workload import Workload
from drlpp.specs.cluster import Cluster

OPERATOR_FEATURES = 21
ACCELERATOR_FEATURES = 4
GLOBAL_FEATURES = 14
"""The widths of a context, the same for every model and cluster."""

_AHEAD = (0.25, 0.5, 1.0, 2.0)
"""Work, in accelerators' worth, that is looked ahead."""


@dataclass(frozen=True, eq=False)
class PlacementContext:
    """A model on a cluster, in numbers without units, whose meaning no model changes.

    Two contexts are equal if they are the same.

    Attributes:
        predecessors: of every operator, the operators that it depends on.
        successors: of every operator, the operators that depend on it.
        node_features: ``(operators, F)``.
        edges: pairs of joined operators in both directions, ``(2, edges)``.
        accelerator_features: ``(A, F_A)``.
        global_features: of the model and the cluster as a whole, ``(F_G,)``.
        costs: what the rule says.
    """

    predecessors: tuple[tuple[int, ...], ...]
    successors: tuple[tuple[int, ...], ...]
    node_features: Tensor
    edges: Tensor
    accelerator_features: Tensor
    global_features: Tensor
    costs: RelativeCosts

    @classmethod
    def of_workload(cls, workload: Workload, cluster: Cluster) -> PlacementContext:
        """Describe a workload on a cluster.

        The features of every operator are its share of the work, of the weights and of the tensors
        that it makes and reads, its degrees, and fourteen numbers on where it stands in the model.
        Those of every accelerator are its relative speed, its rank by speed, the share of
        accelerators on its host, and the share of those that are slower. Memory is not among them.
        """
        costs = RelativeCosts.of(workload, cluster)
        made, read = numpy.zeros(len(workload)), numpy.zeros(len(workload))
        for tensor in costs.tensors:
            made[tensor.source] += tensor.both
            read[list(tensor.readers)] += tensor.both
        features = numpy.column_stack(
            [
                numpy.clip(costs.work, 0, 4),
                logarithm(costs.work),
                logarithm(costs.weights),
                logarithm(made),
                logarithm(read),
                numpy.log1p([len(found) for found in workload.predecessors]),
                numpy.log1p([len(found) for found in workload.successors]),
                _outlook(costs, workload.predecessors),
            ]
        )
        pairs = set(workload.edges) | {(b, a) for a, b in workload.edges}
        return cls(
            predecessors=workload.predecessors,
            successors=workload.successors,
            node_features=_tensor(features),
            edges=torch.tensor(sorted(pairs), dtype=torch.int64).reshape(-1, 2).T,
            accelerator_features=_tensor(_accelerator_features(costs, cluster.host_of)),
            global_features=_tensor(_global_features(costs)),
            costs=costs,
        )

    def __len__(self) -> int:
        """Return the number of operators."""
        return len(self.predecessors)

    @property
    def accelerators(self) -> int:
        """The number of accelerators, A."""
        return len(self.costs.speeds)

    @cached_property
    def accelerator_order(self) -> tuple[int, ...]:
        """The accelerators, the fastest first: the order in which they choose their stages."""
        speeds = self.costs.speeds
        return tuple(sorted(range(self.accelerators), key=lambda a: (-speeds[a], a)))


@dataclass(frozen=True, eq=False)
class ContextBatch:
    """Several models on several clusters at once, as one graph of parts that are not joined.

    Attributes:
        contexts: C of them.
        node_features: of all operators, ``(all operators, F)``.
        edges: ``(2, all edges)``.
        node_context: the context of every operator, ``(all operators,)``.
        first: the first operator of every context, ``(C,)``.
        global_features: ``(C, F_G)``.
        accelerator_features: ``(C, most, F_A)``, zeros where there is no such accelerator.
        accelerators: A of every context, ``(C,)``.
        speeds: the least and the largest relative speed, ``(C, 2)``.
        scales: what :func:`~drlpp.agents.transfer.relative_costs.stage_ideals` needs, ``(C, 3)``.
    """

    contexts: tuple[PlacementContext, ...]
    node_features: Tensor
    edges: Tensor
    node_context: Tensor
    first: NDArray[numpy.int64]
    global_features: Tensor
    accelerator_features: Tensor
    accelerators: NDArray[numpy.int64]
    speeds: Array
    scales: Array

    @classmethod
    def of(
        cls, contexts: Sequence[PlacementContext], device: torch.device | str = "cpu"
    ) -> ContextBatch:
        """Join contexts."""
        sizes = [len(context) for context in contexts]
        costs = [context.costs for context in contexts]
        first = numpy.concatenate([[0], numpy.cumsum(sizes)[:-1]]).astype(numpy.int64)
        return cls(
            contexts=tuple(contexts),
            node_features=torch.cat([c.node_features for c in contexts]).to(device),
            edges=torch.cat(
                [c.edges + int(at) for c, at in zip(contexts, first, strict=True)], dim=1
            ).to(device),
            node_context=torch.repeat_interleave(torch.tensor(sizes)).to(device),
            first=first,
            global_features=torch.stack([c.global_features for c in contexts]).to(device),
            accelerator_features=torch.nn.utils.rnn.pad_sequence(
                [c.accelerator_features for c in contexts], batch_first=True
            ).to(device),
            accelerators=numpy.array([c.accelerators for c in contexts]),
            speeds=numpy.array([(c.speeds.min(), c.speeds.max()) for c in costs]),
            scales=numpy.stack([c.scale for c in costs]),
        )

    def pooled(self, nodes: Tensor) -> Tensor:
        """Return mean and maximum of the operators' representations, ``(C, 2 · units)``."""
        count, width = len(self.contexts), nodes.shape[1]
        index = self.node_context[:, None].expand_as(nodes)
        zeros = nodes.new_zeros(count, width)
        mean = zeros.scatter_reduce(0, index, nodes, "mean", include_self=False)
        most = zeros.scatter_reduce(0, index, nodes, "amax", include_self=False)
        return torch.cat([mean, most], dim=1)


def _outlook(costs: RelativeCosts, predecessors: Sequence[Sequence[int]]) -> Array:
    """Return fourteen numbers for every operator: what comes before and after, cheap cuts ahead.

    Graph convolutions see three operators far; these numbers see all operators.

    * the share of the work of all that it depends on, and of all that depends on it;
    * the share of work and of weights up to it in the order of the operators;
    * what a cut behind it would send, in that order; the least that any cut would send within the
      next 0.25, 0.5, 1 and 2 accelerators' worth of work;
    * the weights within the next 0.5, 1 and 2 accelerators' worth of work, as ideals;
    * the most work of one operator within the next accelerator's worth, and of all that follow.

    Returns:
        ``(operators, 14)``.
    """
    count = len(costs.work)
    total = max(float(costs.work.sum()), 1e-12)
    before = numpy.zeros((count, count), dtype=bool)
    for operator, read in enumerate(predecessors):
        before[operator, operator] = True
        for source in read:
            before[operator] |= before[source]
    ancestors = before @ costs.work / total
    descendants = before.T @ costs.work / total
    work, weights = costs.work.cumsum(), costs.weights.cumsum()
    crossing = _crossing(costs)
    columns = [
        ancestors,
        descendants,
        work / total,
        weights / max(float(weights[-1]), 1e-12),
        logarithm(crossing),
    ]
    ends = [numpy.searchsorted(work, work + ahead, side="right") for ahead in _AHEAD]
    for end in ends:
        # Behind the last operator there is nothing to cut.
        least = [
            crossing[first + 1 : min(last, count - 1)].min(initial=1e4)
            for first, last in enumerate(end)
        ]
        columns.append(logarithm(numpy.array(least)))
    padded = numpy.append(weights, weights[-1])
    columns += [logarithm(padded[numpy.minimum(end, count) - 1] - weights) for end in ends[1:]]
    following = numpy.append(costs.work[1:], 0.0)
    largest = [following[at:last].max(initial=0.0) for at, last in enumerate(ends[2])]
    columns.append(numpy.minimum(largest, 2.0))
    columns.append(numpy.minimum(numpy.maximum.accumulate(following[::-1])[::-1], 2.0))
    return numpy.column_stack(columns)


def _crossing(costs: RelativeCosts) -> Array:
    """Return the ideals of what a cut behind every operator would send, in operator order."""
    change = numpy.zeros(len(costs.work) + 1)
    for tensor in costs.tensors:
        if tensor.readers:
            change[tensor.source] += tensor.both
            change[max(tensor.readers)] -= tensor.both
    return change[:-1].cumsum()


def _accelerator_features(costs: RelativeCosts, host_of: Sequence[int]) -> Array:
    speeds, hosts = costs.speeds, numpy.array(host_of)
    slower = (speeds[:, None] > speeds * (1 + 1e-6)).mean(axis=1)
    equal = numpy.isclose(speeds[:, None], speeds).mean(axis=1)
    same_host = (hosts[:, None] == hosts).mean(axis=1)
    return numpy.column_stack([numpy.log2(speeds), slower, equal, same_host])


def _global_features(costs: RelativeCosts) -> Array:
    count = len(costs.speeds)
    messages = numpy.array([t.both for t in costs.tensors] or [0.0])
    everything = numpy.array([[costs.work.sum(), costs.weights.sum(), 0.0, 0.0]])
    by_replicas = ideals_by_replicas(everything, costs.scale[None], count)[0]
    return numpy.array(
        [
            numpy.log2(count) / 3,
            1 / count,
            numpy.log2(len(costs.work)) / 6,
            numpy.clip(costs.work.max() / 4, 0, 2),
            logarithm(costs.weights.sum()),
            logarithm(numpy.median(messages)),
            logarithm(messages.max()),
            numpy.log2(by_replicas[-1].clip(1, 1e3)) / 4,
            numpy.log2(by_replicas.min().clip(1, 1e3)) / 4,
            numpy.log2(costs.speeds.min()),
            numpy.log2(costs.speeds.max()),
            logarithm(numpy.array(costs.latency)),
            logarithm(costs.sharing * costs.weights.sum() / count),
            logarithm(numpy.array(costs.overhead)),
        ]
    )


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(numpy.ascontiguousarray(values, dtype=numpy.float32))
