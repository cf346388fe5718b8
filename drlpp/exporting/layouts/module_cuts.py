"""Where a model may be cut if modules stay whole: its graph, contracted by modules or layers."""

from __future__ import annotations

from torch import nn

from drlpp.capturing.graph import OpGraph
from drlpp.costs.contracted_profile import ContractedGraph
from drlpp.exporting.layouts import deepspeed
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.exporting.layouts.module_layout import layers_of, units_of


def contracted_at(module: nn.Module, graph: OpGraph, cut_at: CutAt) -> ContractedGraph:
    """Return the graph whose operators are modules or layers.

    An operator between them, which the model itself computes, is in the one that it reads from, the
    latest of several.

    Raises:
        InvalidInput: layers are asked for, and the model has no list of them.
    """
    layers = cut_at is CutAt.LAYERS
    units = layers_of(module, graph) if layers else units_of(module, graph, deepspeed.CONTAINERS)
    found = [(unit.modules[-1], list(unit.operators)) for unit in units if unit.operators]
    group_of = {op: number for number, (_, group) in enumerate(found) for op in group}
    for operator in range(len(graph)):
        if operator not in group_of:
            read = (group_of[source] for source in graph.predecessors[operator])
            group_of[operator] = max(read, default=0)
            found[group_of[operator]][1].append(operator)
    return ContractedGraph.of(graph, [(name, sorted(group)) for name, group in found])
