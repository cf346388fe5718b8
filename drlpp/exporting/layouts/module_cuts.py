"""Cuts at modules: a graph contracted by modules, layers or blocks; stages that a user names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from torch import nn

from drlpp.capturing.graph import OpGraph
from drlpp.costs.profiles.contracted_profile import ContractedGraph
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.exporting.layouts import deepspeed
from drlpp.exporting.layouts.block_cuts import contracted_by_blocks
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.exporting.layouts.module_layout import layers_of, units_of
from drlpp.placement.placement import Placement

_PREFIX = "modules:"


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


def read_layout(text: str, module: nn.Module, graph: OpGraph, accelerators: int) -> Placement:
    """Return the placement whose stages begin at modules, stage k on accelerator k.

    Args:
        text: ``modules:a.1,b``, the modules at which the second and further stages begin, as in
            torch's ``split_spec``.
        module: the model.
        graph: its operators.
        accelerators: of the cluster.

    Raises:
        InvalidInput: what is wrong with it, and what would be right.
    """
    if not text.startswith(_PREFIX):
        raise InvalidInput(f"layout {text!r}: expected {_PREFIX}NAME,NAME,…, where stages begin")
    try:
        begins = _begins(text.removeprefix(_PREFIX), module, graph)
        stages = len(begins) + 1
        if stages > accelerators:
            raise InvalidInput(
                f"it has {stages} stages, and there are {accelerators} accelerators; a stage needs "
                "one of its own"
            )
        stage_of = [bisect_right(begins, operator) for operator in range(len(graph))]
        placement = Placement.from_assignment(stage_of, range(stages))
        placement.validate_for(graph, accelerators)
    except InvalidPlacement as error:
        raise InvalidPlacement(f"layout {text!r}: {error}") from None
    except InvalidInput as error:
        raise InvalidInput(f"layout {text!r}: {error}") from None
    return placement


def _begins(layout: str, module: nn.Module, graph: OpGraph) -> list[int]:
    """Return the first operator of every module that is named, in order."""
    begins = []
    for name in filter(None, (name.strip() for name in layout.split(","))):
        try:
            module.get_submodule(name)
        except AttributeError:
            raise InvalidInput(f"the model has no module {name!r}") from None
        owned = [op.id for op in graph.operators if f"{op.module}.".startswith(f"{name}.")]
        if not owned:
            raise InvalidInput(f"{name} computes nothing, so no stage can begin there")
        begins.append(owned[0])
    if sorted(set(begins)) != begins:
        raise InvalidInput("name modules in the order in which they compute, each once")
    if begins[:1] == [0]:
        raise InvalidInput("the first stage begins at the model's beginning; leave its module out")
    return begins
