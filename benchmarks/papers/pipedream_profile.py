r"""Reading the published profiles of PipeDream's profiler: ``graph.txt``.

A line is an operator, or, if it starts with a tab, an edge between two::

    node2 -- Conv2d(3, 64) -- forward_compute_time=0.5, backward_compute_time=1.1, …
    node3 -- ReLU -- forward_compute_time=0.1, …, activation_size=[64.0; 8.0], parameter_size=7168.000
    \tnode2 -- node3

Times are milliseconds and sizes bytes, of a minibatch. A list in brackets holds the outputs of one
operator, which count as one tensor.

Two kinds of nodes are left out, as PipeDream's optimizer leaves them out: the sources named
``Input…``, whose time is that of loading data (every worker reads the inputs itself), and the sinks
named ``__getitem__…``, tensors that nobody reads.
"""  # noqa: E501 (a line of the file)

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import networkx

from drlpp.capturing.graph import Edge, Operator, OpGraph, TensorSpec
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.errors import InvalidFile

_SECONDS_PER_MILLISECOND = 1e-3


@dataclass(frozen=True)
class _Node:
    description: str
    forward_seconds: float
    backward_seconds: float
    activation_bytes: int
    parameter_bytes: int


def read_pipedream_profile(path: Path) -> Profile:
    """Read ``graph.txt``: one operator for each of its nodes, named by description and node.

    Operators are numbered in a topological order; where that leaves a choice, in the order of their
    nodes' numbers. What an operator keeps for its backward pass is not in the file and is taken to
    be its output. The minibatch counts as one, since the file does not tell its size.

    Raises:
        InvalidFile: naming the file and the line that is neither an operator nor an edge.
    """
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    nodes: dict[str, _Node] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        name, *rest = line.strip().split(" -- ")
        try:
            if line.startswith("\t"):
                (target,) = rest
                graph.add_edge(name, target)
            else:
                description, fields, *_stage = rest
                nodes[name] = _node(description, fields)
                graph.add_node(name)
        except (KeyError, ValueError) as error:
            raise InvalidFile(
                f"{path}: line {number}: is no operator or edge of PipeDream ({error})"
            ) from None
    _leave_out_what_is_no_operator(graph, nodes)
    return _profile(path.stem, graph, nodes)


def _node(description: str, fields: str) -> _Node:
    values = dict(field.split("=") for field in fields.split(", "))
    return _Node(
        description=description,
        forward_seconds=float(values["forward_compute_time"]) * _SECONDS_PER_MILLISECOND,
        backward_seconds=float(values["backward_compute_time"]) * _SECONDS_PER_MILLISECOND,
        activation_bytes=round(sum(map(float, values["activation_size"].strip("[]").split("; ")))),
        parameter_bytes=round(float(values["parameter_size"])),
    )


def _leave_out_what_is_no_operator(graph: networkx.DiGraph[str], nodes: dict[str, _Node]) -> None:
    graph.remove_nodes_from(
        [
            name
            for name, read in graph.in_degree()
            if not read and nodes[name].description.startswith("Input")
        ]
    )
    graph.remove_nodes_from(
        [
            name
            for name, readers in graph.out_degree()
            if not readers and nodes[name].description.startswith("__getitem__")
        ]
    )


def _profile(model: str, graph: networkx.DiGraph[str], nodes: dict[str, _Node]) -> Profile:
    order = list(networkx.lexicographical_topological_sort(graph, key=_natural))
    position = {name: number for number, name in enumerate(order)}
    operators, costs = [], []
    for name in order:
        node = nodes[name]
        # Only the size of the output is known; as many elements of four bytes stand for its shape.
        output = TensorSpec(
            shape=(node.activation_bytes // 4,), dtype="float32", bytes_=node.activation_bytes
        )
        operators.append(
            Operator(
                id=position[name],
                name=f"{node.description} {name}",
                type=node.description.partition("(")[0],
                module=name,
                parameter_bytes=node.parameter_bytes,
                outputs=(output,),
            )
        )
        costs.append(
            OperatorProfile(
                forward_seconds=node.forward_seconds,
                backward_seconds=node.backward_seconds,
                kept_bytes=node.activation_bytes,
            )
        )
    edges = sorted((position[source], position[target]) for source, target in graph.edges)
    return Profile(
        graph=OpGraph(
            model=model,
            operators=tuple(operators),
            edges=tuple(Edge(source=a, target=b, outputs=(0,)) for a, b in edges),
            outputs=tuple((position[n], 0) for n in order if not graph.out_degree(n)),
        ),
        device="pipedream",
        batch_size=1,
        operators=tuple(costs),
    )


def _natural(name: str) -> tuple[str | int, ...]:
    """Return a key that sorts ``node10`` behind ``node9``."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))
