"""Branch compression: a graph as the chain of layers that PipeDream's formulas are about."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import networkx

from drlpp.graph import OpGraph
from drlpp.profile import Profile


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer l of the chain (pipedream §3.1).

    Attributes:
        operators: ids of the operators that are compressed into it.
        seconds: T_l, forward plus backward, for one minibatch.
        parameter_bytes: w_l.
        activation_bytes: a_l, what this layer and those before it give to the layers behind it.
    """

    operators: tuple[int, ...]
    seconds: float
    parameter_bytes: int
    activation_bytes: int


def chain_of_layers(graph: OpGraph, profile: Profile) -> tuple[Layer, ...]:
    """Compress the branches of ``graph``, so that what is left is a chain.

    Cuts are possible only behind articulation points: operators that every path from the inputs
    to the outputs passes. All that stands between two of them, branches and skip connections,
    becomes one layer together with the operator that joins them::

        a ─▶ b ─┬▶ c ─┬▶ e ─▶ f        layers: a │ b │ c d e │ f
                └▶ d ─┘

    Operators behind the last articulation point form the last layer.
    """
    layer_of = _layer_of(graph)
    count = layer_of[-1] + 1
    last_reader: dict[tuple[int, int], int] = {}
    for edge in graph.edges:
        for output in edge.outputs:
            tensor = (edge.source, output)
            last_reader[tensor] = max(last_reader.get(tensor, 0), layer_of[edge.target])
    # The loss is computed behind the last layer, so what the model returns has to get there.
    last_reader.update(dict.fromkeys(graph.outputs, count - 1))
    activation_bytes = [0] * count
    for (operator, output), reader in last_reader.items():
        for cut in range(layer_of[operator], reader):
            activation_bytes[cut] += graph.operators[operator].outputs[output].bytes_
    members = [
        [op for op, index in enumerate(layer_of) if index == layer] for layer in range(count)
    ]
    return tuple(
        Layer(
            operators=tuple(operators),
            seconds=sum(profile.seconds[operator] for operator in operators),
            parameter_bytes=sum(graph.operators[op].parameter_bytes for op in operators),
            activation_bytes=activation,
        )
        for operators, activation in zip(members, activation_bytes, strict=True)
    )


def _layer_of(graph: OpGraph) -> list[int]:
    """The layer of every operator.

    An operator stands behind the articulation points of which it is a descendant, and before
    all others, so in a topological numbering it is enough to compare the numbers.
    """
    source, sink = -1, len(graph)
    flow = graph.to_networkx()
    flow.add_edges_from((source, op) for op, read in enumerate(graph.predecessors) if not read)
    flow.add_edges_from((op, sink) for op, readers in enumerate(graph.successors) if not readers)
    dominator = networkx.immediate_dominators(flow, source)
    points = []
    point = dominator[sink]
    while point != source:
        points.append(point)
        point = dominator[point]
    points.reverse()
    return [bisect_left(points, operator) for operator in range(len(graph))]
