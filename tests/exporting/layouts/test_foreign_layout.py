"""Layouts of other projects as placements: what our exports write is read as it was meant."""

from pathlib import Path

import pytest
from torch import nn

from drlpp import InvalidInput, ModelReference
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.capturing.graph import OpGraph
from drlpp.exporting.layouts import deepspeed, torchtitan
from drlpp.exporting.layouts.foreign_layout import megatron_stages, read_layout
from drlpp.exporting.layouts.megatron import layer_counts, layout_string
from drlpp.exporting.layouts.module_layout import ModuleLayout, layers_of, nearest_layout, units_of
from drlpp.exporting.nearest import Nearest
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method

STAGES = 3


@pytest.fixture(scope="module")
def decoder() -> CapturedModel:
    return capture(ModelReference.named("tests.exporting.decoder:decoder", layers=6))


def laid_out(module: nn.Module, graph: OpGraph, units: tuple) -> ModuleLayout:
    """The nearest layout of a placement that cuts at thirds of the operators."""
    stage_of = [min(STAGES * op // len(graph), STAGES - 1) for op in range(len(graph))]
    placement = Placement.from_assignment(stage_of, range(STAGES))
    nearest = Nearest(Candidate(placement, Method(policy="sync", schedule="gpipe")), ())
    return nearest_layout(nearest, graph, units, [1.0] * len(graph))


def written(name: str, captured: CapturedModel, folder: Path) -> tuple[str, Placement]:
    """A layout as a format has it, and the placement that was written."""
    module, graph = captured.task.module, captured.graph
    match name:
        case "megatron" | "vllm":
            layout = laid_out(module, graph, layers_of(module, graph))
            counts = ",".join(map(str, layer_counts(layout)))
            text = layout_string(layout) if name == "megatron" else counts
        case "deepspeed":
            layout = laid_out(module, graph, units_of(module, graph, deepspeed.CONTAINERS))
            found: dict[str, object] = {}
            code = deepspeed.deepspeed_text(layout, 8, "decoder", ()).replace(
                "PipelineModule)", "object)"
            )
            exec(code.replace("from deepspeed.pipe import PipelineModule", ""), found)
            text = ",".join(map(str, found["PARTS"]))  # type: ignore[call-overload]
        case _:
            layout = laid_out(module, graph, units_of(module, graph, torchtitan.CONTAINERS))
            torchtitan.write_torchtitan(layout, 8, (), folder)
            text = str(folder / "parallelism.toml")
    return f"{name}:{text}", layout.nearest.candidate.placement


@pytest.mark.parametrize("name", ["megatron", "vllm", "deepspeed", "torchtitan"])
def test_what_is_exported_is_read_back(name: str, decoder: CapturedModel, tmp_path: Path) -> None:
    text, placement = written(name, decoder, tmp_path)
    assert len(placement.stages) == STAGES
    assert read_layout(text, decoder.task.module, decoder.graph, 4) == placement


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
    ("layout", "stages"),
    [
        ("Ettt|(tt|)*3,t|L", ["Ettt", "tt", "tt", "tt", "t", "L"]),
        ("Et*3|t*2|tL", ["Ettt", "tt", "tL"]),
        ("E,(t|)*2,tL", ["Et", "t", "tL"]),
        ("E|(|tt)*2|L", ["E", "", "tt", "tt", "L"]),
    ],
)
def test_repetitions_are_those_of_megatron(layout: str, stages: list[str]) -> None:
    """By its documentation: "xy(ab|cd|ef)*2,pq" is "xyab|cd|efab|cd|efpq"."""
    assert megatron_stages(layout) == stages


@pytest.mark.parsers
def test_repetitions_are_read_as_by_megatron_itself() -> None:
    """The figures above are from its documentation."""
    from megatron.core.transformer import pipeline_parallel_layer_layout

    theirs = pipeline_parallel_layer_layout.PipelineParallelLayerLayout
    letters = {"embedding": "E", "decoder": "t", "loss": "L"}
    for layout in ("Ettt|(tt|)*3,t|L", "Et*3|t*2|tL", "E,(t|)*2,tL", "E|(|tt)*2|L"):
        parsed = [
            [letters[layer.name] for layer in row] for row in theirs.parse_str_to_list(layout)
        ]
        assert ["".join(row) for row in parsed] == megatron_stages(layout)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("pipedream:3", "expected FORMAT:LAYOUT, one of megatron:…"),
        ("megatron:Ett|ttL", "it has 4 layers, and .* has 6"),
        ("megatron:tt|ttttEL", "expected one E at the beginning"),
        ("megatron:Etttm|tttL", "'m' is no layer"),
        ("megatron:E|tttttt||L", "stage 2 computes nothing"),
        ("megatron:Et|t|t|t|ttL", "5 stages, and there are 4 accelerators"),
        ("vllm:3;3", "expected numbers separated by commas"),
        ("deepspeed:0,3", "expected numbers from 0 to"),
        ("modules:layers.9", "no module 'layers.9'"),
        ("modules:layers.4,layers.2", "in the order in which they compute"),
        ("torchtitan:nothing.toml", "no such file"),
    ],
)
def test_what_is_wrong_is_said(layout: str, message: str, decoder: CapturedModel) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_layout(layout, decoder.task.module, decoder.graph, 4)


def test_a_file_without_the_list_is_refused(decoder: CapturedModel, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[parallelism]\nmodule_fqns_per_model_part = [3]\n")
    with pytest.raises(InvalidInput, match="a list of names"):
        read_layout(f"torchtitan:{file}", decoder.task.module, decoder.graph, 4)
