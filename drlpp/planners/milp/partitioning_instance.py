"""Instances of dnn-partitioning (Tarnawski et al. 2020), as problems for planners.

Its JSON has nodes of the forward and of the backward pass; nodes of one colour class stay together
and are one operator of the workload. A node's output is one tensor, which takes ``cost``
milliseconds on every device that it leaves or enters; tensors lead from forward to forward, from
forward to backward and from backward to backward nodes. Costs are times, not sizes: a tensor has as
many bytes as seconds, and the link carries a byte in a second. So tensors weigh nothing in a
device's memory either, as in the instances, whose ``maxSizePerFPGA`` limits the sum of the nodes'
``size`` alone.

Stages are ordered by edges between forward nodes, since a backward pass mirrors its forward pass.
A class without forward nodes takes its place from its own backward edges: where one leads from u to
v, v's class may not stand in a later stage than u's. Classes on a cycle of the order are one
operator. (throughput-dp of https://github.com/msr-fiddle/dnn-partitioning does the same.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import networkx
import numpy
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drlpp.costs.memory import MemoryModel
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidFile
from drlpp.io.documents import first_problem, read_mapping
from drlpp.io.quantities import Room
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.specs.cluster import MOST_ACCELERATORS, Link, local_cluster

_LINK = Link(bandwidth_bytes_per_second=1.0)

# Two edges of one node may differ by rounding.
_SAME_COST_MILLISECONDS = 1e-6


@dataclass(frozen=True)
class PartitioningInstance:
    """A workload, and what it was to be placed on.

    Attributes:
        workload: operators in the order of the file as far as edges allow, named by their nodes.
        accelerators: ``maxFPGAs``; the instance's CPU is left out.
        memory_bytes: of each, ``maxSizePerFPGA``.
    """

    workload: Workload
    accelerators: int
    memory_bytes: float

    @classmethod
    def read(cls, path: str | Path) -> PartitioningInstance:
        """Read a JSON file of dnn-partitioning.

        Raises:
            InvalidFile: naming the file, the node, edge or field, and what is wrong with it.
        """
        path = Path(path)
        try:
            content = _Content.model_validate(read_mapping(path))
        except ValidationError as error:
            raise InvalidFile(f"{path}: {first_problem(error)}") from None
        _check_nodes(path, content)
        costs = _tensor_costs(path, content)
        operator_of, edges = _operators(path, content)
        return cls(
            workload=_workload(path.stem, content, operator_of, edges, costs),
            accelerators=content.accelerators,
            memory_bytes=content.memory_bytes,
        )

    def problem(self, accelerators: int | None = None) -> PlanningProblem:
        """Place it by its own rule: one device for each stage, and nothing overlaps.

        Args:
            accelerators: another number than the instance's.
        """
        cluster = local_cluster(
            self.accelerators if accelerators is None else accelerators,
            _LINK,
            memory_bytes=self.memory_bytes,
        )
        return PlanningProblem(
            workload=self.workload,
            cluster=cluster,
            costs="serial",
            replicate=False,
            memory=MemoryModel(weight_copies=1),
        )


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class _Node(_Part):
    id: int
    name: str | None = None
    milliseconds: float = Field(alias="fpgaLatency", ge=0, le=1e12)
    supported: bool = Field(alias="supportedOnFpga")
    backward: bool = Field(alias="isBackwardNode")
    colour: int | None = Field(alias="colorClass", default=None)
    size: float = Field(default=0.0, ge=0, le=2**53)


class _Edge(_Part):
    source: int = Field(alias="sourceId")
    target: int = Field(alias="destId")
    milliseconds: float = Field(alias="cost", ge=0, le=1e12)


class _Content(_Part):
    accelerators: int = Field(alias="maxFPGAs", ge=1, le=MOST_ACCELERATORS)
    memory_bytes: Room = Field(alias="maxSizePerFPGA")
    nodes: tuple[_Node, ...] = Field(min_length=1)
    edges: tuple[_Edge, ...]


def _check_nodes(path: Path, content: _Content) -> None:
    known: dict[int, _Node] = {}
    for node in content.nodes:
        if node.id in known:
            raise InvalidFile(f"{path}: two nodes have the id {node.id}; every id names one")
        if not node.supported:
            raise InvalidFile(
                f"{path}: node {node.id} is not supported on accelerators; only instances that "
                "can do without the CPU are read"
            )
        known[node.id] = node
    for edge in content.edges:
        for end in (edge.source, edge.target):
            if end not in known:
                raise InvalidFile(
                    f"{path}: the edge from {edge.source} to {edge.target} names node {end}, "
                    "which is not among the nodes"
                )
        if known[edge.source].backward and not known[edge.target].backward:
            raise InvalidFile(
                f"{path}: the edge from {edge.source} to {edge.target} leads from a backward to a "
                "forward node; the forward pass cannot wait for the backward pass"
            )


def _tensor_costs(path: Path, content: _Content) -> dict[int, float]:
    """Return the cost in milliseconds of the output of every node that has readers."""
    costs: dict[int, float] = {}
    for edge in content.edges:
        known = costs.setdefault(edge.source, edge.milliseconds)
        if not math.isclose(known, edge.milliseconds, rel_tol=0.0, abs_tol=_SAME_COST_MILLISECONDS):
            raise InvalidFile(
                f"{path}: edges from node {edge.source} cost {known} and {edge.milliseconds}; "
                "its output is one tensor and has one cost"
            )
    return costs


def _operators(path: Path, content: _Content) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return the operator of every node, and the order edges between operators."""
    colours: dict[object, int] = {}
    class_of = {
        # A node without a colour is a class of its own.
        node.id: colours.setdefault(
            ("node", node.id) if node.colour is None else node.colour, len(colours)
        )
        for node in content.nodes
    }
    forward: networkx.DiGraph[int] = networkx.DiGraph()
    backward = {node.id for node in content.nodes if node.backward}
    forward.add_edges_from(
        (edge.source, edge.target)
        for edge in content.edges
        if edge.source not in backward and edge.target not in backward
    )
    if not networkx.is_directed_acyclic_graph(forward):
        cycle = " -> ".join(str(source) for source, _ in networkx.find_cycle(forward))
        raise InvalidFile(f"{path}: the forward nodes {cycle} form a cycle; expected none")
    # Nodes that stay together may still make cycles between classes.
    order: networkx.DiGraph[int] = networkx.DiGraph()
    order.add_nodes_from(range(len(colours)))
    order.add_edges_from(_order_edges(content, class_of))

    fused = networkx.condensation(order)
    first = {component: min(fused.nodes[component]["members"]) for component in fused}
    numbering = {
        component: number
        for number, component in enumerate(
            networkx.lexicographical_topological_sort(fused, key=first.__getitem__)
        )
    }
    component_of = fused.graph["mapping"]
    edges = sorted({(numbering[source], numbering[target]) for source, target in fused.edges})
    return {node: numbering[component_of[c]] for node, c in class_of.items()}, edges


def _order_edges(content: _Content, class_of: dict[int, int]) -> Iterable[tuple[int, int]]:
    backward = {node.id: node.backward for node in content.nodes}
    with_forward = {class_of[node.id] for node in content.nodes if not node.backward}
    for edge in content.edges:
        source, target = class_of[edge.source], class_of[edge.target]
        if source == target:
            continue
        if not backward[edge.target]:
            yield source, target
        elif backward[edge.source] and not {source, target} <= with_forward:
            yield target, source


def _workload(
    model: str,
    content: _Content,
    operator_of: dict[int, int],
    edges: Sequence[tuple[int, int]],
    costs: dict[int, float],
) -> Workload:
    count = max(operator_of.values()) + 1
    forward, backward, size = (numpy.zeros(count) for _ in range(3))
    names: dict[int, str] = {}
    for node in content.nodes:
        operator = operator_of[node.id]
        (backward if node.backward else forward)[operator] += node.milliseconds / 1000
        size[operator] += node.size
        names.setdefault(operator, node.name or f"node {node.id}")

    readers: dict[int, set[int]] = {}
    for edge in content.edges:
        readers.setdefault(edge.source, set()).add(operator_of[edge.target])
    transfers = []
    for node_id, found in sorted(readers.items()):
        others = sorted(found - {operator_of[node_id]})
        if others:
            members = (operator_of[node_id], *others)
            transfers.append(Transfer(members, costs[node_id] / 1000, 0.0))
    return Workload(
        model=model,
        names=tuple(names[operator] for operator in range(count)),
        forward_seconds=forward,
        backward_seconds=backward,
        update_seconds=numpy.zeros(count),
        parameter_bytes=size,
        kept_bytes=numpy.zeros(count),
        edges=tuple(edges),
        transfers=tuple(transfers),
    )
