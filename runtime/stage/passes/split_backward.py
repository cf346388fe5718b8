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
        ends: Sequence[Tensor],
        seeds: Sequence[Tensor],
        received: Sequence[Tensor],
        weights: Sequence[Tensor],
    ) -> None:
        self._weights = [get_gradient_edge(weight) for weight in weights]
        # Of a custom function Python holds a node, but not the graph behind it.
        self._graph = [end.view_as(end).grad_fn for end in ends]
        roots = [get_gradient_edge(end) for end in ends]
        graph = _Graph(roots, map(get_gradient_edge, received), self._weights)
        # Where backwards begin that lead to weights alone, and with what.
        self._beginnings = [
            (root, seed)
            for root, seed in zip(roots, seeds, strict=True)
            if graph.leads[root.node] == _TO_WEIGHTS
        ]
        self._joining = graph.joining()
        self._is_shared = any(
            graph.readers[edge.node] > 1 for edges in self._joining.values() for edge in edges
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


class _Graph:
    """What autograd recorded, as far as it leads from ``roots`` to leaves.

    Attributes:
        leads: where every node leads: to what was received, to weights, to both, to neither.
        readers: how many edges lead to a node.
    """

    def __init__(
        self,
        roots: Sequence[GradientEdge],
        received: Iterable[GradientEdge],
        weights: Iterable[GradientEdge],
    ) -> None:
        leaves = {edge.node: _TO_RECEIVED for edge in received}
        leaves |= {edge.node: _TO_WEIGHTS for edge in weights}
        self.leads: dict[Node, int] = {}
        self.readers: dict[Node, int] = {}
        waiting = [root.node for root in roots]
        for node in waiting:
            self.readers[node] = self.readers.get(node, 0) + 1
        open_: set[Node] = set()
        while waiting:
            node = waiting[-1]
            if node in self.leads:
                waiting.pop()
                continue
            behind = [other for other, _ in node.next_functions if other is not None]
            if node in open_ or not behind:
                waiting.pop()
                leads = leaves.get(node, 0)
                for other in behind:
                    leads |= self.leads[other]
                self.leads[node] = leads
                continue
            open_.add(node)
            for other in behind:
                self.readers[other] = self.readers.get(other, 0) + 1
                waiting.append(other)

    def joining(self) -> dict[Node, list[GradientEdge]]:
        """Return the nodes on the way to what was received that other ways join.

        With the edges to these, which lead to weights alone.
        """
        found = {}
        for node, leads in self.leads.items():
            if leads == _TO_RECEIVED | _TO_WEIGHTS:
                edges = [
                    GradientEdge(other, number)
                    for other, number in node.next_functions
                    if other is not None and self.leads[other] == _TO_WEIGHTS
                ]
                if edges:
                    found[node] = edges
        return found


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
