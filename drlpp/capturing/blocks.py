"""Blocks of a model that repeat, and the model with fewer of them, which costs less to profile.

A decoder of 48 layers is 48 times the same operators, one block behind the other::

    embedding ─ block ─ block ─ block ─ … ─ block ─ norm ─ head

Blocks are equal where their operators are: type, bytes of parameters, outputs, edges from within,
from the block before, or from one operator ahead of all blocks; and the nodes that they are made
of, with all their constants, which of their weights are trained, and whether a gradient passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy
from torch import fx

from drlpp.capturing.aten import is_call
from drlpp.capturing.capture import CapturedModel
from drlpp.capturing.folding import described
from drlpp.capturing.graph import Edge, OpGraph
from drlpp.torch_versions import graph_compiled_when_used

KEPT = 4
"""Blocks that stay. With fewer, all weights of a small model would stay in a processor's cache."""


@dataclass(frozen=True)
class Blocks:
    """Equal runs of operators, each behind the other.

    Attributes:
        begin: the first operator of the first block.
        length: operators of a block.
        copies: how many blocks there are.
    """

    begin: int
    length: int
    copies: int

    @property
    def left_out(self) -> range:
        """The operators of all blocks but the first :data:`KEPT`."""
        end = self.begin + self.copies * self.length
        return range(self.begin + KEPT * self.length, end)

    def kept(self, operator: int) -> range:
        """Return the equal operators of all blocks that stay."""
        first = self.begin + (operator - self.begin) % self.length
        return range(first, first + KEPT * self.length, self.length)


@dataclass(frozen=True)
class Shortened:
    """A model with fewer blocks.

    Attributes:
        captured: it computes something else than the whole model, in equal operators.
        alike: for every operator of the whole model, those of this one that are equal.
    """

    captured: CapturedModel
    alike: tuple[tuple[int, ...], ...]


def shorten(captured: CapturedModel) -> Shortened:
    """Leave out blocks that repeat, those of an encoder and those of a decoder alike."""
    found = Shortened(captured, tuple((op.id,) for op in captured.graph.operators))
    while (less := _shorten_once(found.captured)) is not None:
        alike = tuple(
            tuple(sorted({measured for op in ops for measured in less.alike[op]}))
            for ops in found.alike
        )
        found = Shortened(less.captured, alike)
    return found


def _shorten_once(captured: CapturedModel) -> Shortened | None:
    members: dict[int, list[fx.Node]] = {}
    for node in captured.module.graph.nodes:
        if is_call(node):
            members.setdefault(captured.operator_of[node.name], []).append(node)
    passing = _passes_gradients(captured)
    nodes = [
        [_described(passing, node) for node in members[op.id]] for op in captured.graph.operators
    ]
    blocks = next(find_blocks(captured.graph, nodes=nodes), None)
    return None if blocks is None else _without(captured, members, blocks)


def find_blocks(
    graph: OpGraph, kept: int = KEPT, nodes: Sequence[object] | None = None
) -> Iterator[Blocks]:
    """Yield blocks that repeat more than ``kept`` times; the most operators to spare first.

    Args:
        graph: of the model.
        kept: how many copies are too few.
        nodes: what else has to be equal, by operator.
    """
    numbers: dict[object, int] = {}
    labels = numpy.array(
        [
            numbers.setdefault(
                (op.type, op.parameter_bytes, op.outputs, repr(nodes and nodes[op.id])),
                len(numbers),
            )
            for op in graph.operators
        ]
    )
    found = []
    for length in range(1, len(labels) // (kept + 1) + 1):
        same = numpy.concatenate([[False], labels[:-length] == labels[length:], [False]])
        (changes,) = numpy.nonzero(same[:-1] != same[1:])
        for begin, end in changes.reshape(-1, 2).tolist():
            copies = (end - begin) // length + 1
            if copies > kept:
                found.append(Blocks(begin, length, copies))
    found.sort(key=lambda blocks: ((kept - blocks.copies) * blocks.length, blocks.length))
    incoming: list[list[Edge]] = [[] for _ in graph.operators]
    for edge in graph.edges:
        incoming[edge.target].append(edge)
    equal = (_with_equal_edges(incoming, blocks) for blocks in found)
    yield from (blocks for blocks in equal if blocks.copies > kept)


def _with_equal_edges(incoming: Sequence[Sequence[Edge]], blocks: Blocks) -> Blocks:
    """Return the blocks from the first on that read from the same places, the first apart."""

    def places(block: int) -> list[set[tuple[object, ...]]]:
        begin = blocks.begin + block * blocks.length
        return [
            {
                (
                    # Of this block and the one before counts how far it is from the block's begin.
                    edge.source - begin
                    if edge.source >= begin - blocks.length and edge.source >= blocks.begin
                    else f"ahead: {edge.source}",
                    edge.outputs,
                )
                for edge in incoming[operator]
            }
            for operator in range(begin, begin + blocks.length)
        ]

    second = places(1)
    equal = takewhile(lambda block: places(block) == second, range(2, blocks.copies))
    return replace(blocks, copies=2 + len(list(equal)))


def _passes_gradients(captured: CapturedModel) -> set[fx.Node]:
    """Return the nodes whose backward gives a gradient: a trained weight is on the way to them."""
    trained = {name for name, value in captured.module.named_parameters() if value.requires_grad}
    found: set[fx.Node] = set()
    for node in captured.module.graph.nodes:
        if (node.op == "get_attr" and node.target in trained) or not found.isdisjoint(
            node.all_input_nodes
        ):
            found.add(node)
    return found


def _described(passing: Set[fx.Node], node: fx.Node) -> object:
    """Return what makes a node cost what it costs, other nodes apart."""
    constants = fx.map_arg((node.args, node.kwargs), lambda one: one in passing)
    return str(node.target), node in passing, repr(constants)


def _without(
    captured: CapturedModel, members: Mapping[int, Sequence[fx.Node]], blocks: Blocks
) -> Shortened:
    """Leave blocks out; what they give, the last block that stays gives in their place."""
    instead: dict[fx.Node, fx.Node] = {}
    for operator in blocks.left_out:
        others = members[blocks.kept(operator)[-1]]
        instead |= dict(zip(members[operator], others, strict=True))
    graph = fx.Graph()
    graph.set_codegen(captured.module.graph._codegen)
    copies: dict[fx.Node, fx.Node] = {}
    for node in captured.module.graph.nodes:
        copies[node] = (
            copies[instead[node]] if node in instead else graph.node_copy(node, copies.__getitem__)
        )
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)
    module = graph_compiled_when_used(captured.module, graph)
    operators = range(len(captured.graph))
    kept = [op for op in operators if op not in blocks.left_out]
    number = {op: place for place, op in enumerate(kept)}
    groups = [tuple(copies[node] for node in members[op]) for op in kept]
    repeated = range(blocks.begin, blocks.left_out.stop)
    return Shortened(
        replace(captured, module=module, **described(captured.graph.model, module, groups)),
        tuple(
            tuple(number[equal] for equal in blocks.kept(op)) if op in repeated else (number[op],)
            for op in operators
        ),
    )
