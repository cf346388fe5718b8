"""Writing a profile as an instance of dnn-partitioning (Tarnawski et al. 2020).

Every operator is a node of the forward and one of the backward pass, of one colour. A gradient that
leaves an operator is a node of its own, which takes no time: one node has one output there, and an
operator gives every operator that it reads from another gradient.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drlpp.costs.profile import Profile
from drlpp.io.documents import write_atomically
from drlpp.specs.cluster import Link

_MILLISECONDS_PER_SECOND = 1e3


def write_partitioning_instance(
    path: str | Path, profile: Profile, accelerators: int, link: Link, memory_bytes: float
) -> None:
    """Write an instance for equal accelerators.

    Costs of messages are times, so the file is for one link. The outputs of an operator count as
    one tensor, and an update as a part of the backward. A node's size is that of its weights and of
    what it keeps for the backward.

    Args:
        path: of the file.
        profile: a model and its costs.
        accelerators: ``maxFPGAs``.
        link: between two of them.
        memory_bytes: of each.
    """
    graph = profile.graph
    count = len(graph)
    nodes: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []

    def node(id_: int, name: str, colour: int, seconds: float, size: float, backward: bool) -> None:
        milliseconds = seconds * _MILLISECONDS_PER_SECOND
        nodes.append(
            {
                "id": id_,
                "name": name,
                "supportedOnFpga": 1,
                "cpuLatency": milliseconds,
                "fpgaLatency": milliseconds,
                "isBackwardNode": int(backward),
                "colorClass": colour,
                "size": size,
            }
        )

    def edge(source: int, target: int, bytes_: float) -> None:
        milliseconds = link.seconds(bytes_) * _MILLISECONDS_PER_SECOND if bytes_ else 0.0
        edges.append({"sourceId": source, "destId": target, "cost": milliseconds})

    read_bytes = [0] * count
    for operator in graph.operators:
        read = {k for e in graph.edges if e.source == operator.id for k in e.outputs}
        read_bytes[operator.id] = sum(operator.outputs[k].bytes_ for k in read)
    for operator, cost in zip(graph.operators, profile.operators, strict=True):
        update = operator.parameter_bytes * profile.update_seconds_per_byte
        name, id_ = operator.name, operator.id
        size = operator.parameter_bytes + cost.kept_bytes
        node(id_, name, id_, cost.forward_seconds, size, False)
        node(count + id_, f"{name} grad", id_, cost.backward_seconds + update, 0.0, True)
    gradient = 2 * count
    for pair in graph.edges:
        source, target = pair.source, pair.target
        edge(source, target, read_bytes[source])
        outputs = graph.operators[source].outputs
        back = sum(outputs[k].bytes_ for k in pair.outputs if outputs[k].differentiable)
        if back:
            names = graph.operators[target].name, graph.operators[source].name
            node(gradient, f"{names[0]} grad of {names[1]}", target, 0.0, 0.0, True)
            edge(count + target, gradient, 0.0)
            edge(gradient, count + source, back)
            gradient += 1
    content = {
        "maxSizePerFPGA": memory_bytes,
        "maxFPGAs": accelerators,
        "maxCPUs": 0,
        "nodes": nodes,
        "edges": edges,
    }
    write_atomically(Path(path), (json.dumps(content, indent=1) + "\n").encode())
