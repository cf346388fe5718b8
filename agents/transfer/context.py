"""What a policy sees of a model on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy
import torch
from torch import Tensor

from drlpp.agents.paper.features import node_features, undirected_edges
from drlpp.agents.transfer.outlook import operator_features
from drlpp.agents.transfer.relative_costs import RelativeCosts, ideals_by_replicas, logarithm
from drlpp.capturing.graph import OpGraph
from drlpp.costs.stage_cost import Array
from drlpp.costs.workload import Workload
from drlpp.specs.cluster import Cluster

OPERATOR_FEATURES = 21
ACCELERATOR_FEATURES = 4
GLOBAL_FEATURES = 14
"""The widths of a transferable context, the same for every model and cluster."""


@dataclass(frozen=True, eq=False)
class PlacementContext:
    """A model on a cluster, as a policy sees it. Two contexts are equal if they are the same.

    Attributes:
        predecessors: of every operator, the operators that it depends on.
        successors: of every operator, the operators that depend on it.
        accelerators: A.
        node_features: ``(operators, F)``.
        edges: pairs of joined operators in both directions, ``(2, edges)``.
        accelerator_features: ``(A, F_A)``; F_A = 0 if nothing is known of accelerators.
        global_features: of the model and the cluster as a whole, ``(F_G,)``.
        costs: what the rule says, in a transferable context.
    """

    predecessors: tuple[tuple[int, ...], ...]
    successors: tuple[tuple[int, ...], ...]
    accelerators: int
    node_features: Tensor
    edges: Tensor
    accelerator_features: Tensor
    global_features: Tensor
    costs: RelativeCosts | None = None

    @classmethod
    def of_graph(cls, graph: OpGraph, accelerators: int) -> PlacementContext:
        """Describe a graph as the paper does (drl-pp §3.1).

        The features are one-hot types and sizes; accelerators are only counted.
        """
        return cls(
            predecessors=graph.predecessors,
            successors=graph.successors,
            accelerators=accelerators,
            node_features=node_features(graph),
            edges=undirected_edges(graph),
            accelerator_features=torch.zeros(accelerators, 0),
            global_features=torch.zeros(0),
        )

    @classmethod
    def of_workload(cls, workload: Workload, cluster: Cluster) -> PlacementContext:
        """Describe a workload on a cluster for a policy that transfers.

        The features are numbers without units, whose meaning no model changes.

        The features of every operator are its share of the work, of the weights and of the tensors
        that it makes and reads, its degrees, and the columns of
        :func:`~drlpp.agents.transfer.outlook.operator_features`. Those of every accelerator are its
        relative speed, its rank by speed, the share of accelerators on its host, and the share of
        those that are slower. Memory is not among them.
        """
        costs = RelativeCosts.of(workload, cluster)
        made, read = numpy.zeros(len(workload)), numpy.zeros(len(workload))
        for tensor in costs.tensors:
            made[tensor.source] += tensor.forward + tensor.backward
            read[list(tensor.readers)] += tensor.forward + tensor.backward
        features = numpy.column_stack(
            [
                numpy.clip(costs.work, 0, 4),
                logarithm(costs.work),
                logarithm(costs.weights),
                logarithm(made),
                logarithm(read),
                numpy.log1p([len(found) for found in workload.predecessors]),
                numpy.log1p([len(found) for found in workload.successors]),
                operator_features(costs, workload.predecessors),
            ]
        )
        pairs = set(workload.edges) | {(b, a) for a, b in workload.edges}
        return cls(
            predecessors=workload.predecessors,
            successors=workload.successors,
            accelerators=costs.accelerators,
            node_features=_tensor(features),
            edges=torch.tensor(sorted(pairs), dtype=torch.int64).reshape(-1, 2).T,
            accelerator_features=_tensor(_accelerator_features(costs, cluster.host_of)),
            global_features=_tensor(_global_features(costs)),
            costs=costs,
        )

    def __len__(self) -> int:
        """Return the number of operators."""
        return len(self.predecessors)

    @cached_property
    def accelerator_order(self) -> tuple[int, ...]:
        """The accelerators, the fastest first: the order in which they choose their stages."""
        if self.costs is None:
            return tuple(range(self.accelerators))
        speeds = self.costs.speeds
        return tuple(sorted(range(self.accelerators), key=lambda a: (-speeds[a], a)))


def _accelerator_features(costs: RelativeCosts, host_of: Sequence[int]) -> Array:
    speeds, hosts = costs.speeds, numpy.array(host_of)
    slower = (speeds[:, None] > speeds * (1 + 1e-6)).mean(axis=1)
    equal = numpy.isclose(speeds[:, None], speeds).mean(axis=1)
    same_host = (hosts[:, None] == hosts).mean(axis=1)
    return numpy.column_stack([numpy.log2(speeds), slower, equal, same_host])


def _global_features(costs: RelativeCosts) -> Array:
    count = costs.accelerators
    messages = numpy.array([t.forward + t.backward for t in costs.tensors] or [0.0])
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
