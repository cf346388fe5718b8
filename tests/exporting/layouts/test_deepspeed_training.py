"""Exports for DeepSpeed, trained by DeepSpeed itself, on CPU."""

from pathlib import Path

import pytest
import torch
from torch import nn

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.exporting.layouts import deepspeed
from drlpp.exporting.layouts.deepspeed import deepspeed_text
from drlpp.exporting.layouts.module_layout import nearest_layout, units_of
from drlpp.exporting.nearest import Nearest
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.candidate import Candidate
from drlpp.schedule.method import Method
from tests.support.models.zoo.tiny_models import tiny
from tests.support.programs.without_drlpp import torchrun
from tests.support.training.in_microbatches import train_in_microbatches
from tests.support.training.pipelines import in_a_row

pytestmark = pytest.mark.parsers

PROGRAM = Path(__file__).parent / "programs" / "deepspeed_training.py"
BATCH, PARTS, STAGES, STEPS = 8, 4, 2, 20
METHOD = Method(schedule="1f1b-flush", policy="sync", microbatches=PARTS)
OPTIMIZERS = {"SGD": 0.1, "Adam": 1e-4}
MODELS = {
    "vgg16": tiny("vgg16", batch_size=BATCH),
    "gpt2": tiny("gpt2", batch_size=BATCH, tied=False, dropout=0.0),
    "gpt2_tied": tiny("gpt2", batch_size=BATCH, tied=True, dropout=0.0),
    "gnmt8": tiny("gnmt8", batch_size=BATCH, dropout=0.0),
}


def placed(captured: CapturedModel) -> str:
    """What is exported of two stages with as many operators each."""
    graph = captured.graph
    units = units_of(captured.task.module, graph, deepspeed.CONTAINERS)
    nearest = Nearest(Candidate(in_a_row(graph, *range(STAGES)), METHOD), ())
    layout = nearest_layout(nearest, graph, units, estimate_profile(graph).seconds)
    return deepspeed_text(layout, BATCH, str(captured.reference), ())


def case(reference: ModelReference, task: Task) -> dict[str, object]:
    """What the ranks need: the model, where it begins, and minibatches of shuffled samples."""
    draw = torch.Generator().manual_seed(1)
    order = torch.stack([torch.randperm(BATCH, generator=draw) for _ in range(STEPS)])
    return {
        "model": reference.name,
        "options": reference.options,
        "weights": task.module.state_dict(),
        "inputs": [values[order] for values in task.inputs],
        "targets": task.targets[order],
        "optimizers": OPTIMIZERS,
    }


def test_deepspeed_trains_what_was_exported(tmp_path: Path) -> None:
    """Every stage has our parameters, at the values that plain PyTorch trains."""
    cases = {}
    for name, reference in MODELS.items():
        captured = capture(reference)
        (tmp_path / f"placed_{name}.py").write_text(placed(captured))
        cases[name] = case(reference, captured.task)
    torch.save(cases, tmp_path / "cases.pt")
    torchrun(STAGES, str(PROGRAM), folder=tmp_path, drlpp=True)
    trained = [torch.load(tmp_path / f"stage{rank}.pt") for rank in range(STAGES)]
    for name, known in cases.items():
        for kind, lr in OPTIMIZERS.items():
            task = MODELS[name].build()
            task.module.load_state_dict(known["weights"])
            for module in task.module.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            optimizer = getattr(torch.optim, kind)(task.module.parameters(), lr=lr)
            expected = train_in_microbatches(
                task.module, task.loss, optimizer, known["inputs"], known["targets"], PARTS
            )
            stages = [stage[name][kind] for stage in trained]
            assert set().union(*stages) == set(expected)
            difference = max(
                (value - expected[one]).abs().max().item()
                for stage in stages
                for one, value in stage.items()
            )
            print(f"{name}, {kind}: largest difference {difference:.1e}")
            assert difference <= 1e-6
