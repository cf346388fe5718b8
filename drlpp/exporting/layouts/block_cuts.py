"""Where a model may be cut if blocks that repeat stay whole: its graph, contracted by blocks.

A decoder of 48 layers is 48 times the same operators. Whoever divides its blocks alone has some
fifty operators to place instead of five hundred. Unlike layers
(:mod:`drlpp.exporting.layouts.module_cuts`) they are found in the graph, so that no model is
needed, and any model has them that says the same several times: encoders, vision transformers,
residual networks.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from drlpp.capturing.blocks import find_blocks
from drlpp.capturing.graph import OpGraph, common_module
from drlpp.costs.profiles.contracted_profile import ContractedGraph
from drlpp.errors import InvalidInput

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
