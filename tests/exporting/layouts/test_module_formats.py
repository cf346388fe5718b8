"""What others' own parsers make of a layout; theirs where they are installed, else a stand-in."""

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profile import Profile
from drlpp.exporting.layouts.module_layout import nearest_layout
from drlpp.exporting.layouts.programs import MODULE_FORMATS
from drlpp.exporting.nearest import Nearest
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.schedule.method import Method
from tests.support.models.zoo.tiny_models import tiny
from tests.support.programs.without import torchrun
from tests.support.training.pipelines import in_a_row

METHOD = Method(schedule="1f1b-flush", policy="sync", microbatches=4, accumulate=2)
NOTES = ("stage 0 has 2 replicas", "a second note")


@pytest.fixture(scope="module")
def decoder() -> CapturedModel:
    return capture(ModelReference.named("tests.exporting.decoder:decoder"))


def written(
    captured: CapturedModel, name: str, to: Path, notes: tuple[str, ...] = NOTES
) -> Nearest:
    """The layout of three stages that a format has written."""
    form = MODULE_FORMATS[name]
    nearest = Nearest(Candidate(in_a_row(captured.graph, 0, 1, 2), METHOD), ())
    seconds = Profile.estimated(captured.graph).seconds
    units = form.units(captured.task.module, captured.graph)
    layout = nearest_layout(nearest, captured.graph, units, seconds)
    assert str(to) in form.write(layout, captured, notes, to) or name == "deepspeed"
    return layout


def test_megatron_arguments(decoder: CapturedModel, tmp_path: Path) -> None:
    written(decoder, "megatron", tmp_path / "args")
    lines = (tmp_path / "args").read_text().splitlines()
    assert lines[:2] == [f"# {note}" for note in NOTES]
    assert lines[2:] == [
        "--pipeline-model-parallel-size 3",
        "--num-layers 6",
        "--pipeline-model-parallel-layout Ett|tt|ttL",
        "--untie-embeddings-and-output-weights",
        "--micro-batch-size 2",
        "--global-batch-size 16",
        "--clip-grad 0.0",
    ]


@pytest.mark.parsers
@pytest.mark.parametrize("tied", [True, False])
def test_megatrons_parser_on_gpt2(tied: bool, tmp_path: Path) -> None:
    from megatron.core.transformer import pipeline_parallel_layer_layout as layouts

    gpt2 = capture(tiny("gpt2", layers=5, tied=tied))
    layout = written(gpt2, "megatron", tmp_path / "args")
    text = (tmp_path / "args").read_text()
    assert ("--untie-embeddings-and-output-weights\n" in text) != tied
    (pattern,) = re.findall("--pipeline-model-parallel-layout (.*)", text)
    parsed = layouts.PipelineParallelLayerLayout(pattern, 3)
    parsed.validate_layer_layout(num_layers=5, mtp_num_layers=None)
    operators = [stage.operators for stage in layout.candidate.placement.stages]
    owners = [{gpt2.graph.operators[k].module.partition(".")[0] for k in own} for own in operators]
    for (theirs,), part, ours in zip(parsed.layout, pattern.split("|"), owners, strict=True):
        names = [layer.name for layer in theirs]
        assert names.count("decoder") == part.count("t")
        assert ("embedding" in names) == ("tokens" in ours)
        assert ("loss" in names) == ("head" in ours)


def test_torchtitan_options(decoder: CapturedModel, tmp_path: Path) -> None:
    written(decoder, "torchtitan", tmp_path / "titan")
    text = (tmp_path / "titan" / "parallelism.toml").read_text()
    assert text.startswith(f"# {NOTES[0]}\n# {NOTES[1]}\n")
    found = tomllib.loads(text)
    assert found["training"] == {"local_batch_size": 16, "max_norm": float("inf")}
    options = found["parallelism"]
    assert options["module_fqns_per_model_part"] == [
        ["tok_embeddings", "layers.0", "layers.1"],
        ["layers.2", "layers.3"],
        ["layers.4", "layers.5", "norm", "output"],
    ]
    assert options["pipeline_parallel_microbatch_size"] == 2
    rows = Path(options["pipeline_parallel_schedule_csv"]).read_text().splitlines()
    assert rows[2].split(",") == [f"2{kind}{part}" for part in range(8) for kind in "FB"]


@pytest.mark.parsers
def test_torchtitan_makes_the_same_stages(decoder: CapturedModel, tmp_path: Path) -> None:
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torchtitan.config import ParallelismConfig
    from torchtitan.distributed import pipeline_parallel as theirs

    layout = written(decoder, "torchtitan", tmp_path)
    found = tomllib.loads((tmp_path / "parallelism.toml").read_text())["parallelism"]
    options = ParallelismConfig(**found)
    assert get_schedule_class(options.pipeline_parallel_schedule)
    value, names = decoder.task.inputs[0], []
    for part in options.module_fqns_per_model_part:
        stage = theirs._split_module(decoder.task.module, part)
        value = stage(value)
        names.append(set(dict(stage.named_parameters())))
    torch.testing.assert_close(value, decoder.task.module(*decoder.task.inputs))
    operators = layout.candidate.placement.stages
    for stage, own in zip(operators, names, strict=True):
        modules = {decoder.graph.operators[k].module for k in stage.operators}
        assert {name.rpartition(".")[0] for name in own} <= modules


class _PipelineModule:
    """What ``Placed`` uses of DeepSpeed's, on one of three ranks."""

    def __init__(self, layers: list[str], rank: int) -> None:
        self._layer_specs, self.global_rank = layers, rank
        self._topo = SimpleNamespace(get_coord=lambda rank: SimpleNamespace(pipe=rank))
        self._partition_layers(method="uniform")

    def _set_bounds(self, start: int, stop: int) -> None:
        self.own = self._layer_specs[start:stop]


def test_deepspeeds_parts(
    decoder: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(decoder, "deepspeed", tmp_path / "placed.py")
    text = (tmp_path / "placed.py").read_text()
    assert f"- {NOTES[0]}\n- {NOTES[1]}\n" in text
    pipe = ModuleType("deepspeed.pipe")
    pipe.PipelineModule = _PipelineModule
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.pipe", pipe)
    module: dict[str, object] = {}
    exec(compile(text, "placed.py", "exec"), module)
    layers = list(module["LAYERS"])
    stages = [module["Placed"](layers, rank) for rank in range(3)]
    assert stages[0].parts == [0, 3, 5, 9]
    assert module["CONFIG"] == {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 8,
        "gradient_clipping": 0.0,
    }
    assert [stage.own for stage in stages] == [
        ["tok_embeddings", "layers.0", "layers.1"],
        ["layers.2", "layers.3"],
        ["layers.4", "layers.5", "norm", "output"],
    ]
    with pytest.raises(ValueError, match="8 layers; PARTS are of 9"):
        module["Placed"](layers[1:], 0)


_ON_THREE_RANKS = """
import torch
import deepspeed
from torch import nn

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # It would be compiled.
deepspeed.init_distributed("gloo")
import placed

torch.manual_seed(0)
layers = [nn.Linear(number + 1, number + 2) for number in range(len(placed.LAYERS))]
stage = placed.Placed(layers, num_stages=3, loss_fn=nn.functional.mse_loss)
shapes = [tuple(weight.shape) for weight in stage.parameters() if weight.dim() == 2]
print("OWN", stage.global_rank, stage.parts, shapes)
"""


@pytest.mark.parsers
def test_deepspeed_builds_the_parts(decoder: CapturedModel, tmp_path: Path) -> None:
    written(decoder, "deepspeed", tmp_path / "placed.py")
    (tmp_path / "program.py").write_text(_ON_THREE_RANKS)
    done = torchrun(3, "program.py", folder=tmp_path)
    for rank, (begin, end) in enumerate([(0, 3), (3, 5), (5, 9)]):
        shapes = [(number + 2, number + 1) for number in range(begin, end)]
        assert f"OWN {rank} [0, 3, 5, 9] {shapes}" in done.stdout
