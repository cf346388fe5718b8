"""Cuts at modules that a user names, and at blocks, which are found and planned as one."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.capturing.graph import Edge, Operator, OpGraph, TensorSpec
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.module_cuts import contracted_by_blocks, read_layout, repeated_blocks
from drlpp.models.model_reference import Model, ModelReference
from tests.support.models.translating import translating
from tests.support.models.zoo.tiny_models import tiny


@pytest.mark.parametrize(
    ("model", "layer", "count"),
    [(tiny("gpt2", layers=4), r"blocks\.\d+", 4), (translating(layers=3), r"(en|de)coder\.\d+", 6)],
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


@pytest.fixture(scope="module")
def decoder() -> CapturedModel:
    return capture(ModelReference.named("tests.exporting.decoder:decoder", layers=6))


def test_stages_begin_at_modules(decoder: CapturedModel) -> None:
    """As torch's own splitter cuts: a stage begins with the first operator of its module."""
    graph = decoder.graph
    placement = read_layout("modules:layers.2,layers.4", decoder.task.module, graph, 3)
    begins = [stage.operators[0] for stage in placement.stages]
    assert [graph.operators[op].module.split(".")[:2] for op in begins[1:]] == [
        ["layers", "2"],
        ["layers", "4"],
    ]
    assert [op for stage in placement.stages for op in stage.operators] == list(range(len(graph)))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("pipedream:3", "expected modules:NAME"),
        ("modules:layers.9", "no module 'layers.9'"),
        ("modules:layers.4,layers.2", "in the order in which they compute"),
        ("modules:tok_embeddings", "the first stage begins at the model's beginning"),
        ("modules:layers.1,layers.2,layers.3,output", "5 stages, and there are 4 accelerators"),
    ],
)
def test_what_is_wrong_is_said(layout: str, message: str, decoder: CapturedModel) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_layout(layout, decoder.task.module, decoder.graph, 4)
