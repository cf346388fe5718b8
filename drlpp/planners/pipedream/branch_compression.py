"""Branch compression: a workload as the chain of layers that PipeDream's formulas are about."""

from __future__ import annotations

from bisect import bisect_left

import networkx

from drlpp.costs.workload import Workload


def chain_of_layers(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """Compress the branches of a workload, so that what is left is a chain (pipedream §3.1).

    Cuts are possible only behind articulation points: operators that every path from the inputs
    to the outputs passes. All that stands between two of them, branches and skip connections,
    becomes one layer together with the operator that joins them::

        a ─▶ b ─┬▶ c ─┬▶ e ─▶ f        layers: a │ b │ c d e │ f
                └▶ d ─┘

    Operators behind the last articulation point form the last layer.

    Returns:
        For every layer its operators.
    """
    layer_of = _layer_of(workload)
    return tuple(
        tuple(operator for operator, layer in enumerate(layer_of) if layer == index)
        for index in range(layer_of[-1] + 1)
    )


def _layer_of(workload: Workload) -> list[int]:
    """Return the layer of every operator.

    An operator stands behind the articulation points of which it is a descendant, and before
    all others, so in a topological numbering it is enough to compare the numbers.
    """
    source, sink = -1, len(workload)
    flow = workload.order()
    predecessors, successors = workload.predecessors, workload.successors
    flow.add_edges_from((source, op) for op, read in enumerate(predecessors) if not read)
    flow.add_edges_from((op, sink) for op, readers in enumerate(successors) if not readers)
    dominator = networkx.immediate_dominators(flow, source)
    points = []
    point = dominator[sink]
    while point != source:
        points.append(point)
        point = dominator[point]
    points.reverse()
    return [bisect_left(points, operator) for operator in range(len(workload))]
