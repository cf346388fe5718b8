"""Which stages are cut into blocks before they are compiled."""

import pickle
from collections.abc import Sequence

import pytest
from torch import fx

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.zoo import SMALL
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.stage.compiling import compilable, weights_of
from drlpp.runtime.stage.repeated_blocks import content, divided
from drlpp.runtime.stage.stages import StageProgram


def only_stage(name: str, **options: float) -> StageProgram:
    captured = capture(ModelReference.named(name, **SMALL[name] | options), check=False)
    placement = Placement.from_assignment([0] * len(captured.graph), (0,))
    program: StageProgram
    (program,) = pickle.loads(pickle.dumps(cut_stages(captured, placement)))
    return program


def parts_of(program: StageProgram) -> Sequence[fx.GraphModule] | None:
    module, _ = compilable(program, "float32")
    whole = divided(module, weights_of(program))
    if whole is None:
        return None
    return [part for part in whole.children() if isinstance(part, fx.GraphModule)]


@pytest.mark.parametrize("dropout", [0, 0.1])
def test_equal_layers_of_a_decoder_are_compiled_once(dropout: float) -> None:
    parts = parts_of(only_stage("gpt2", layers=5, dropout=dropout))
    assert parts is not None
    assert len({content(part.graph.nodes) for part in parts}) == len(parts) - 4


@pytest.mark.parametrize("name", ["vgg16", "resnet50"])
def test_what_convolves_stays_whole(name: str) -> None:
    assert parts_of(only_stage(name)) is None
