"""Blocks that repeat are found in a graph, cut where the fewest bytes pass, and planned as one."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.capturing.capture import capture
from drlpp.capturing.graph import Edge, Operator, OpGraph, TensorSpec
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.block_cuts import contracted_by_blocks, repeated_blocks
from drlpp.models.model_reference import Model
from tests.support.models.translating import translating
from tests.support.models.zoo.tiny_models import tiny


@pytest.mark.parametrize(
    ("model", "layer", "count"),
    [
        (tiny("gpt2", layers=4), r"blocks\.\d+", 4),
        (translating(layers=3), r"(en|de)coder\.\d+", 6),
    ],
)
def test_layers_of_a_model_are_its_blocks(model: Model, layer: str, count: int) -> None:
    graph = capture(model).graph
    found = repeated_blocks(graph)
    assert len(found) == count
    for block in found:
        own = {m[0] for op in block if (m := re.match(layer, graph.operators[op].module))}
        assert len(own) == 1, own
    contracted = contracted_by_blocks(graph)
    assert len(contracted.graph) == len(graph) - sum(map(len, found)) + count
    assert sorted(op for group in contracted.members for op in group) == list(range(len(graph)))


@st.composite
def planted(draw: st.DrawFn) -> tuple[OpGraph, int, int]:
    """A chain with shortcuts in which some operators come again; their first, and how many."""
    before, length, copies, after = (
        draw(st.integers(*bounds)) for bounds in ((0, 4), (2, 5), (3, 6), (0, 4))
    )
    sizes = draw(st.lists(st.integers(1, 3), min_size=length, max_size=length))
    shortcuts = draw(st.sets(st.integers(2, length - 1))) if length > 2 else set()
    # Before and behind the blocks nothing is like anything else.
    kinds = [
        *((f"b{n}", 1) for n in range(before)),
        *((f"x{n}", size) for _ in range(copies) for n, size in enumerate(sizes)),
        *((f"a{n}", 1) for n in range(after)),
    ]
    edges = {(op - 1, op) for op in range(1, len(kinds))}
    for copy in range(copies):
        begin = before + copy * length
        edges |= {(begin + op - 2, begin + op) for op in shortcuts}
    graph = OpGraph(
        model="planted",
        operators=tuple(
            Operator(
                id=number,
                name=f"op{number}",
                type=kind,
                module="",
                parameter_bytes=0,
                outputs=(TensorSpec(shape=(size,), dtype="float32", bytes_=4 * size),),
            )
            for number, (kind, size) in enumerate(kinds)
        ),
        edges=tuple(Edge(source=a, target=b, outputs=(0,)) for a, b in sorted(edges)),
        outputs=((len(kinds) - 1, 0),),
    )
    return graph, length, copies


def sent(graph: OpGraph, place: int) -> int:
    """Bytes of all that is made before an operator and read there or behind."""
    made = {edge.source for edge in graph.edges if edge.source < place <= edge.target}
    return sum(graph.operators[source].output_bytes for source in made)


@given(planted())
def test_planted_blocks_are_found_and_divided_where_the_fewest_bytes_pass(
    example: tuple[OpGraph, int, int],
) -> None:
    graph, length, copies = example
    found = repeated_blocks(graph)
    # The first block reads from elsewhere than the others, and where a block begins may be inside
    # of one: two may be lost.
    assert copies < 5 or len(found) >= copies - 2
    for block in found:
        assert len(block) == length
        kinds = [graph.operators[op].type for op in block]
        assert kinds == [graph.operators[op].type for op in found[0]]
    assert all(one.stop == other.start for one, other in pairwise(found))
    if copies >= 5:
        inside = range(found[1].start, found[1].stop)
        assert sent(graph, found[1].start) == min(sent(graph, place) for place in inside)


def test_a_model_without_blocks_is_refused() -> None:
    graph = capture(tiny("alexnet")).graph
    with pytest.raises(InvalidInput, match="no block"):
        contracted_by_blocks(graph)
