"""Reading the profiles that PipeDream's profiler writes: ``graph.txt``.

A line is an operator, or, if it starts with a tab, an edge between two::

    node2 -- Conv2d(3, 64) -- forward_compute_time=0.5, backward_compute_time=1.1, activation_size=[64.0; 8.0], parameter_size=7168.000
    node3 -- ReLU -- forward_compute_time=0.1, …
    \tnode2 -- node3

Times are milliseconds and sizes bytes, of a minibatch. A list in brackets holds the outputs of one
operator, which count as one tensor. What PipeDream's optimizer wrote has ``stage_id=…`` behind the
fields; it is not read.

Two kinds of nodes are left out, as PipeDream's optimizer leaves them out: the sources named
``Input…``, whose time is that of loading data (every worker reads the inputs itself), and the sinks
named ``__getitem__…``, tensors that nobody reads.
"""  # noqa: E501 (a line of the file)

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import networkx

from drlpp.capturing.graph import Edge, Operator, OpGraph, TensorSpec
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.errors import InvalidFile
from drlpp.file_content import problem_of_text
from drlpp.io.documents import read_text

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_FORM = (
    "expected 'node1 -- description -- forward_compute_time=0.1, backward_compute_time=0.2, "
    "activation_size=3.0, parameter_size=4.0'"
)
_SECONDS_PER_MILLISECOND = 1e-3


@dataclass(frozen=True)
class _Node:
    description: str
    forward_milliseconds: float
    backward_milliseconds: float
    activation_bytes: int
    parameter_bytes: int


def read_pipedream_profile(path: str | Path) -> Profile:
    """Read ``graph.txt``: one operator for each of its nodes, named by description and node.

    Operators are numbered in a topological order; where that leaves a choice, in the order of their
    nodes' numbers. What an operator keeps for its backward pass is not in the file and is taken to
    be its output. The minibatch counts as one, since the file does not tell its size.

    Raises:
        InvalidFile: naming the file, the line, what is wrong there and what is expected.
    """
    path = Path(path)
    # Not splitlines, which also splits at control characters.
    lines = read_text(path).split("\n")
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    nodes: dict[str, _Node] = {}
    edges: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}: line {number}"
        if problem := problem_of_text(line.removeprefix("\t")):
            raise InvalidFile(f"{where}: {problem}")
        if line.startswith("\t"):
            edges.append((number, line))
        elif line.strip():
            name, node = _node(line.strip(), where)
            if name in nodes:
                raise InvalidFile(f"{where}: a second {name!r}; expected another name for it")
            nodes[name] = node
            graph.add_node(name)
    for number, line in edges:
        source, target = _edge(line.strip(), nodes, f"{path}: line {number}")
        graph.add_edge(source, target, line=number)
    _check_acyclic(graph, path)
    _leave_out_what_is_no_operator(graph, nodes)
    if not graph:
        raise InvalidFile(f"{path}: has no operators; {_FORM}")
    return _profile(path.stem, graph, nodes)


def _node(line: str, where: str) -> tuple[str, _Node]:
    parts = line.split(" -- ")
    has_stage = len(parts) == 4 and re.fullmatch(r"stage_id=\d+", parts[3])
    if not (len(parts) == 3 or has_stage):
        raise InvalidFile(f"{where}: {line!r} is no operator; {_FORM}")
    name, description, fields = parts[:3]
    if not re.fullmatch(r"\S+", name):
        raise InvalidFile(f"{where}: {name!r} is no name of a node; {_FORM}")
    values: dict[str, float] = {}
    for field in fields.split(", "):
        key, equals, text = field.partition("=")
        if key not in _FIELDS or not equals:
            raise InvalidFile(f"{where}: unknown field {field!r}; {_FORM}")
        if key in values:
            raise InvalidFile(f"{where}: {key} is given twice; {_FORM}")
        values[key] = _value(key, text, where)
    missing = [key for key in _FIELDS if key not in values]
    if missing:
        raise InvalidFile(f"{where}: {missing[0]} is missing; {_FORM}")
    return name, _Node(
        description=description,
        forward_milliseconds=values["forward_compute_time"],
        backward_milliseconds=values["backward_compute_time"],
        activation_bytes=round(values["activation_size"]),
        parameter_bytes=round(values["parameter_size"]),
    )


def _value(key: str, text: str, where: str) -> float:
    unit = "milliseconds" if key.endswith("time") else "bytes"
    listed = key == "activation_size" and text.startswith("[") and text.endswith("]")
    total = 0.0
    for number in text[1:-1].split("; ") if listed else [text]:
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise InvalidFile(
                f"{where}: {key} is {number!r}, expected {unit}: a number without a unit, finite "
                "and not below 0"
            )
        total += value
    return total


def _edge(line: str, nodes: dict[str, _Node], where: str) -> tuple[str, str]:
    ends = line.split(" -- ")
    if len(ends) != 2:
        raise InvalidFile(
            f"{where}: {line!r} is no edge; expected two nodes, as in 'node1 -- node2'"
        )
    for name in ends:
        if name not in nodes:
            raise InvalidFile(
                f"{where}: there is no node {name!r}; expected a line that defines it"
            )
    return ends[0], ends[1]


def _check_acyclic(graph: networkx.DiGraph[str], path: Path) -> None:
    try:
        cycle = networkx.find_cycle(graph)
    except networkx.NetworkXNoCycle:
        return
    line = max(graph.edges[edge[:2]]["line"] for edge in cycle)
    names = " -> ".join([*(edge[0] for edge in cycle), cycle[0][0]])
    raise InvalidFile(f"{path}: line {line}: the edge closes the cycle {names}; expected none")


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
                forward_seconds=node.forward_milliseconds * _SECONDS_PER_MILLISECOND,
                backward_seconds=node.backward_milliseconds * _SECONDS_PER_MILLISECOND,
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
