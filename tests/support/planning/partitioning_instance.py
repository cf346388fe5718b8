"""Instances of dnn-partitioning (Tarnawski et al. 2020), whose optima are known, as problems.

Nodes of one colour class stay together and are one operator. A node's output is one tensor, which
takes ``cost`` milliseconds on every device that it leaves or enters; a tensor therefore has as many
bytes as seconds, and the link carries a byte in a second. Stages are ordered by edges between
forward nodes. A class without forward nodes takes its place from its own backward edges: where one
leads from u to v, v's class may not stand in a later stage than u's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx
import numpy

from drlpp.costs.stage_cost import Group, StageSeconds, StageWork
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.planners.problem import PlanningProblem
from drlpp.specs.cluster import Link, local_cluster

_LINK = Link(bandwidth_bytes_per_second=1.0)


def read_instance(path: Path) -> PlanningProblem:
    """Read an instance: one device for each stage; by its own rule, :func:`serial`."""
    content = json.loads(path.read_text())
    nodes, edges = content["nodes"], content["edges"]
    operator_of, order = _operators(nodes, edges)
    count = max(operator_of.values()) + 1
    forward, backward, size = (numpy.zeros(count) for _ in range(3))
    for node in nodes:
        operator = operator_of[node["id"]]
        (backward if node["isBackwardNode"] else forward)[operator] += node["fpgaLatency"] / 1000
        size[operator] += node.get("size", 0.0)
    costs = {edge["sourceId"]: edge["cost"] for edge in edges}
    readers: dict[int, set[int]] = {}
    for edge in edges:
        readers.setdefault(edge["sourceId"], set()).add(operator_of[edge["destId"]])
    workload = Workload(
        model=path.stem,
        names=tuple(f"operator {operator}" for operator in range(count)),
        forward_seconds=forward,
        backward_seconds=backward,
        update_seconds=numpy.zeros(count),
        parameter_bytes=size,
        kept_bytes=numpy.zeros(count),
        edges=tuple(order),
        transfers=tuple(
            Transfer((operator_of[node], *others), costs[node] / 1000, 0.0)
            for node, found in sorted(readers.items())
            if (others := sorted(found - {operator_of[node]}))
        ),
    )
    return PlanningProblem(workload, local_cluster(content["maxFPGAs"], _LINK), replicate=False)


def serial(work: StageWork, group: Group) -> StageSeconds:
    """Let nothing overlap, neither passes with messages nor both directions of these."""
    messages = (work.incoming_bytes + work.outgoing_bytes) / group.bandwidth
    nothing = numpy.zeros_like(messages)
    return StageSeconds(
        StageSeconds.busy(work, 1) / group.speed + messages, nothing, nothing, nothing
    )


def _operators(
    nodes: list[dict[str, Any]], edges: list[dict[str, Any]]
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return the operator of every node, and the edges between operators."""
    colours: dict[object, int] = {}
    class_of = {
        # A node without a colour is a class of its own.
        node["id"]: colours.setdefault(
            node["colorClass"] if "colorClass" in node else ("node", node["id"]), len(colours)
        )
        for node in nodes
    }
    order: networkx.DiGraph[int] = networkx.DiGraph()
    order.add_nodes_from(range(len(colours)))
    order.add_edges_from(_order_edges(nodes, edges, class_of))
    # Classes on a cycle of the order are one operator.
    fused = networkx.condensation(order)
    first = {component: min(fused.nodes[component]["members"]) for component in fused}
    sorted_ = networkx.lexicographical_topological_sort(fused, key=first.__getitem__)
    numbering = {component: number for number, component in enumerate(sorted_)}
    component_of = fused.graph["mapping"]
    found = sorted({(numbering[source], numbering[target]) for source, target in fused.edges})
    return {node: numbering[component_of[c]] for node, c in class_of.items()}, found


def _order_edges(
    nodes: list[dict[str, Any]], edges: list[dict[str, Any]], class_of: dict[int, int]
) -> Iterator[tuple[int, int]]:
    backward = {node["id"]: node["isBackwardNode"] for node in nodes}
    with_forward = {class_of[node] for node, is_backward in backward.items() if not is_backward}
    for edge in edges:
        source, target = class_of[edge["sourceId"]], class_of[edge["destId"]]
        if source == target:
            continue
        if not backward[edge["destId"]]:
            yield source, target
        elif backward[edge["sourceId"]] and not {source, target} <= with_forward:
            yield target, source
