"""Cuts at modules: a graph contracted by modules, layers or blocks; stages that a user names.

A decoder of 48 layers is 48 times the same operators. Dividing its blocks alone leaves some fifty
operators to place instead of five hundred. Blocks are found in the graph, so that no model is
needed, and any model has them that says the same several times: encoders, vision transformers,
residual networks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from itertools import groupby

from torch import nn

from drlpp.capturing.blocks import find_blocks
from drlpp.capturing.graph import OpGraph, common_module
from drlpp.costs.contraction import ContractedGraph
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts import CutAt
from drlpp.exporting.layouts.module_layout import layers_of, units_of, with_what_they_read
from drlpp.exporting.layouts.programs import DEEPSPEED_CONTAINERS
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
    if cut_at == "blocks":
        return contracted_by_blocks(graph)
    module, layers = build(), cut_at == "layers"
    units = layers_of(module, graph) if layers else units_of(module, graph, DEEPSPEED_CONTAINERS)
    computing = [unit for unit in units if unit.operators]
    group_of = with_what_they_read(graph, computing, range(len(computing)))
    groups = [
        (unit.modules[-1], [op for op, group in enumerate(group_of) if group == number])
        for number, unit in enumerate(computing)
    ]
    return ContractedGraph.of(graph, groups)


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
    except InvalidInput as error:
        raise type(error)(f"layout {text!r}: {error}") from None
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


_FEWEST = 3
"""Copies of a block: what comes twice may be chance."""


def contracted_by_blocks(graph: OpGraph) -> ContractedGraph:
    """Return the graph whose operators are blocks, and the operators that are in none.

    Raises:
        InvalidInput: nothing repeats.
    """
    blocks = repeated_blocks(graph)
    if not blocks:
        raise InvalidInput(
            f"{graph.model} has no block of operators that comes {_FEWEST} times or more; cut "
            "between operators or modules (--cut-at)"
        )
    alone = set(range(len(graph))).difference(*blocks)
    groups = sorted([*map(list, blocks), *([operator] for operator in alone)])
    names = [_name(graph, group) for group in groups]
    times = Counter(names)
    unique = [
        name if times[name] == 1 else f"{name} ({graph.operators[group[0]].name})"
        for name, group in zip(names, groups, strict=True)
    ]
    return ContractedGraph.of(graph, list(zip(unique, groups, strict=True)))


def repeated_blocks(graph: OpGraph) -> list[range]:
    """Return the operators of every block that repeats, of those of several operators.

    The most repetition counts first. A run of equal blocks may be divided at any of its operators;
    it is where the fewest bytes pass.
    """
    widths = graph.cut_widths()
    free = [True] * len(graph)
    found: list[range] = []
    for blocks in find_blocks(graph, _FEWEST - 1):
        if blocks.length == 1:
            continue
        run = range(blocks.begin, blocks.begin + blocks.length * blocks.copies)
        for is_free, members in groupby(run, key=free.__getitem__):
            piece = list(members)
            if not is_free or len(piece) < _FEWEST * blocks.length:
                continue
            chosen = _least_passing(range(piece[0], piece[-1] + 1), blocks.length, widths)
            found += chosen
            for operator in range(chosen[0].start, chosen[-1].stop):
                free[operator] = False
    return sorted(found, key=lambda block: block.start)


def _least_passing(run: range, length: int, widths: list[int]) -> list[range]:
    """Divide a run where the fewest bytes pass, of such divisions into as many blocks as can be."""

    def divided(offset: int) -> list[range]:
        begins = range(run.start + offset, run.stop - length + 1, length)
        return [range(begin, begin + length) for begin in begins]

    def between(blocks: list[range]) -> float:
        return sum(widths[block.start - 1] for block in blocks[1:]) / (len(blocks) - 1)

    choices = [blocks for offset in range(length) if len(blocks := divided(offset)) >= _FEWEST]
    return min(choices, key=lambda blocks: (between(blocks), -len(blocks)))


def _name(graph: OpGraph, group: list[int]) -> str:
    """Return the innermost module that has all of a group, or the name of its first operator."""
    operators = [graph.operators[operator] for operator in group]
    if len(operators) == 1:
        return operators[0].name
    return ".".join(common_module(op.module for op in operators)) or operators[0].name
