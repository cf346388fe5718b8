"""A backward in two halves: gradients of what a stage received now, those of its weights later.

The first half runs autograd as far as what was received needs it, and notes the gradients that
arrive at the operators where weights join the way. The second half begins there. Nothing is written
into ``grad`` and nothing is detached. Both halves do the arithmetic of the whole backward.

What it costs: Python walks through autograd's graph, autograd is started once more for every
operator with weights, and some operators compute twice what both halves need. Where a weight is
used several times in a stage, the second half takes as long as a whole backward. Until it is done,
the activations of the forward are kept, and the gradients at the outputs of operators with weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

_Arrived = tuple[Tensor | None, ...]

_TO_RECEIVED, _TO_WEIGHTS = 1, 2


class SplitBackward:
    """A backward whose first half is made when it is built.

    Args:
        ends: what the backward begins with.
        seeds: their gradients.
        received: leaves whose gradients are wanted now.
        weights: leaves whose gradients are wanted later; they are not changed until then.

    Attributes:
        of_received: the gradients of ``received``, None where nothing leads to one.
    """

    def __init__(
        self,
        ends: Sequence[GradientEdge],
        seeds: Sequence[Tensor],
        received: Sequence[Tensor],
        weights: Sequence[Tensor],
    ) -> None:
        # They keep the graph.
        self._ends = ends
        self._weights = [get_gradient_edge(weight) for weight in weights]
        leads, readers = _explored(ends, map(get_gradient_edge, received), self._weights)
        # Where backwards begin that lead to weights alone, and with what.
        self._beginnings = [
            (root, seed)
            for root, seed in zip(ends, seeds, strict=True)
            if leads[root.node] == _TO_WEIGHTS
        ]
        # The nodes on the way to what was received that other ways join, with the edges to these.
        self._joining = {
            node: edges
            for node, where in leads.items()
            if where == _TO_RECEIVED | _TO_WEIGHTS
            and (
                edges := [
                    GradientEdge(other, number)
                    for other, number in node.next_functions
                    if other is not None and leads[other] == _TO_WEIGHTS
                ]
            )
        }
        self._is_shared = any(
            readers[edge.node] > 1 for edges in self._joining.values() for edge in edges
        )
        self._arrived: dict[Node, _Arrived] = {}
        self.of_received: Sequence[Tensor | None] = [None] * len(received)
        if ends and received:
            with _hooked({node: self._note(node) for node in self._joining}):
                self.of_received = torch.autograd.grad(
                    ends, received, seeds, retain_graph=bool(self._joining), allow_unused=True
                )

    def _note(self, node: Node) -> Callable[[_Arrived], None]:
        # The hook stays in a part of the graph that this object holds: it may not hold the object.
        arrived = self._arrived

        def note(gradients: _Arrived) -> None:
            arrived[node] = gradients

        return note

    def of_weights(self) -> Sequence[Tensor | None]:
        """Make the second half, which is possible once, and return the gradients of the weights.

        They are None where nothing leads to a weight.
        """
        beginnings, clamped = list(self._beginnings), {}
        for node, gradients in self._arrived.items():
            edges = [GradientEdge(node, number) for number in range(len(gradients))]
            arriving = list(_with_gradients(edges, gradients))
            if self._is_shared:
                # What flows on to another of these nodes is in what was noted there.
                clamped[node] = lambda _, noted=gradients: noted
                beginnings += arriving
            elif arriving:
                joining = self._joining[node]
                beginnings += _with_gradients(joining, _gradients(arriving, joining))
        with _hooked(clamped):
            return _gradients(beginnings, self._weights)


def _explored(
    roots: Sequence[GradientEdge],
    received: Iterable[GradientEdge],
    weights: Iterable[GradientEdge],
) -> tuple[dict[Node, int], Counter[Node]]:
    """Return where every node leads that autograd recorded, and how many edges lead to it.

    A node leads to what was received, to weights, to both, or to neither.
    """
    leaves = {edge.node: _TO_RECEIVED for edge in received}
    leaves |= {edge.node: _TO_WEIGHTS for edge in weights}
    leads: dict[Node, int] = {}
    waiting = [root.node for root in roots]
    readers, open_ = Counter(waiting), set[Node]()
    while waiting:
        node = waiting[-1]
        behind = [other for other, _ in node.next_functions if other is not None]
        if node in leads:
            waiting.pop()
        elif node in open_ or not behind:
            waiting.pop()
            leads[node] = leaves.get(node, 0)
            for other in behind:
                leads[node] |= leads[other]
        else:
            open_.add(node)
            readers.update(behind)
            waiting += behind
    return leads, readers


def _with_gradients(
    edges: Iterable[GradientEdge], gradients: Iterable[Tensor | None]
) -> Iterator[tuple[GradientEdge, Tensor]]:
    for edge, gradient in zip(edges, gradients, strict=True):
        if gradient is not None:
            yield edge, gradient


def _gradients(
    beginnings: Sequence[tuple[GradientEdge, Tensor]], leaves: Sequence[GradientEdge]
) -> Sequence[Tensor | None]:
    if not beginnings or not leaves:
        return [None] * len(leaves)
    edges, seeds = zip(*beginnings, strict=True)
    return torch.autograd.grad(edges, leaves, seeds, allow_unused=True)


@contextmanager
def _hooked(hooks: Mapping[Node, Callable[[_Arrived], object]]) -> Iterator[None]:
    """Call hooks with the gradients that arrive at nodes, which they may replace."""
    handles = [node.register_prehook(hook) for node, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
