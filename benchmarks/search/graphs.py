"""Twelve made-up branching graphs of 40 to 150 operators, two of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy
from numpy.random import Generator

from benchmarks.made_up import with_costs
from drlpp.costs.profile import Profile


@dataclass
class _Graph:
    """Operators that are numbered as they are added, each behind those that it reads."""

    edges: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0

    def add(self, read: Iterable[int] = ()) -> int:
        self.edges += [(source, self.count) for source in sorted(set(read))]
        self.count += 1
        return self.count - 1

    def chain(self, begin: int, length: int) -> int:
        for _ in range(length):
            begin = self.add([begin])
        return begin


def _attention(graph: _Graph, queries: int, keys: int) -> int:
    """Add projections, their product, its softmax, the weighted values, the sum with the input."""
    query, key, value = graph.add([queries]), graph.add([keys]), graph.add([keys])
    weights = graph.chain(graph.add([query, key]), 1)
    return graph.add([graph.add([weights, value]), queries])


def _encoder_decoder(graph: _Graph, size: int, draw: Generator) -> None:
    """Layers of 8 operators in the encoder, 14 in the decoder, which attends to the encoder."""
    encoders = int(draw.integers(1, max(2, size // 16)))
    end = graph.add()
    for _ in range(encoders):
        end = _attention(graph, end, end)
        end = graph.add([graph.chain(end, 2), end])
    memory, end = end, graph.add()
    while graph.count < size:
        end = _attention(graph, end, end)
        end = _attention(graph, end, memory)
        end = graph.add([graph.chain(end, 2), end])
    graph.add([end])


def _two_towers(graph: _Graph, size: int, draw: Generator) -> None:
    """Two chains of unequal length that read each other once in a while, and meet at the end."""
    one, other = graph.add(), graph.add()
    while graph.count < size - 1:
        one = graph.chain(one, int(draw.integers(1, 5)))
        other = graph.chain(other, int(draw.integers(1, 4)))
        if draw.random() < 0.3:
            one, other = graph.add([one, other]), graph.add([other, one])
    graph.add([one, other])


def _heads(graph: _Graph, size: int, draw: Generator) -> None:
    """Add a trunk with skips, and three to five heads of their own lengths."""
    end = graph.add()
    while graph.count < 0.6 * size:
        end = graph.add([graph.chain(end, int(draw.integers(1, 4))), end])
    heads = int(draw.integers(3, 6))
    ends = [graph.add([end]) for _ in range(heads)]
    while graph.count < size:
        head = int(draw.integers(heads))
        ends[head] = graph.chain(ends[head], 1)
    graph.add(ends)


def _u_net(graph: _Graph, size: int, draw: Generator) -> None:
    """Levels down and up again; each on the way up reads its own on the way down."""
    levels = int(draw.integers(3, 6))
    each = max(1, -(-(size - 1 - 2 * levels) // (2 * levels + 1)))
    end, skips = graph.add(), []
    for _ in range(levels):
        end = graph.chain(end, each)
        skips.append(end)
        end = graph.add([end])
    end = graph.chain(end, each)
    for skip in reversed(skips):
        end = graph.chain(graph.add([end, skip]), each)


def _inception(graph: _Graph, size: int, draw: Generator) -> None:
    """Modules of three to five branches of one to three operators."""
    end = graph.chain(graph.add(), 3)
    while graph.count < size:
        branches = int(draw.integers(3, 6))
        end = graph.add([graph.chain(end, int(draw.integers(1, 4))) for _ in range(branches)])


def _layered(graph: _Graph, size: int, draw: Generator) -> None:
    """Layers of one to five operators that read one to three of the two layers before."""
    before = [graph.add()]
    while graph.count < size:
        layer = []
        for _ in range(int(draw.integers(1, 6))):
            count = min(len(before), int(draw.integers(1, 4)))
            layer.append(graph.add(draw.choice(before, count, replace=False).tolist()))
        before = [*before[-3:], *layer] if draw.random() < 0.3 else layer


_Kind = Callable[[_Graph, int, Generator], None]

_GRAPHS: dict[str, tuple[_Kind, int]] = {
    "encoder-decoder-48": (_encoder_decoder, 48),
    "encoder-decoder-120": (_encoder_decoder, 120),
    "towers-40": (_two_towers, 40),
    "towers-90": (_two_towers, 90),
    "heads-56": (_heads, 56),
    "heads-140": (_heads, 140),
    "u-net-44": (_u_net, 44),
    "u-net-100": (_u_net, 100),
    "inception-60": (_inception, 60),
    "inception-130": (_inception, 130),
    "layered-50": (_layered, 50),
    "layered-110": (_layered, 110),
}

NAMES = tuple(_GRAPHS)


def graph_of(name: str) -> Profile:
    """Return one of :data:`NAMES` with its costs, always the same."""
    kind, size = _GRAPHS[name]
    draw = numpy.random.default_rng([16, NAMES.index(name)])
    graph = _Graph()
    kind(graph, size, draw)
    return with_costs(name, graph.count, sorted(set(graph.edges)), draw)
