"""Where a model may be cut if something stays whole: its graph, contracted by modules, layers or
blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from drlpp.capturing.graph import OpGraph
from drlpp.costs.profiles.contracted_profile import ContractedGraph
from drlpp.exporting.layouts import deepspeed
from drlpp.exporting.layouts.block_cuts import contracted_by_blocks
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.exporting.layouts.module_layout import layers_of, units_of


def contracted_at(cut_at: CutAt, graph: OpGraph, build: Callable[[], nn.Module]) -> ContractedGraph:
    """Return the graph whose operators are modules, layers or blocks.

    An operator between modules, which the model itself computes, is in the one that it reads from,
    the latest of several; one between blocks stays by itself.

    Args:
        cut_at: what stays whole, but for operators.
        graph: of the model.
        build: makes the model, which is not needed for blocks.

    Raises:
        InvalidInput: the model has no list of layers, or no blocks.
    """
    if cut_at is CutAt.BLOCKS:
        return contracted_by_blocks(graph)
    module, layers = build(), cut_at is CutAt.LAYERS
    units = layers_of(module, graph) if layers else units_of(module, graph, deepspeed.CONTAINERS)
    found = [(unit.modules[-1], list(unit.operators)) for unit in units if unit.operators]
    group_of = {op: number for number, (_, group) in enumerate(found) for op in group}
    for operator in range(len(graph)):
        if operator not in group_of:
            read = (group_of[source] for source in graph.predecessors[operator])
            group_of[operator] = max(read, default=0)
            found[group_of[operator]][1].append(operator)
    return ContractedGraph.of(graph, [(name, sorted(group)) for name, group in found])
