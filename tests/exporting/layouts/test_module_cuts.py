"""Stages that begin at modules which a user names."""

import pytest

from drlpp import InvalidInput, ModelReference
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.exporting.layouts.module_cuts import read_layout


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
