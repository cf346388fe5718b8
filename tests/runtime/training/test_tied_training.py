"""Whole trainings of a model whose stages share parameters: evaluation, files, other placements."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime.ipc.tensor_file import read_checkpoint
from tests.support.models.tied import BATCH, Tied, data, placements
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import train
from tests.support.training.placement_files import file_of

DATA = "tests.support.models.tied:data"
OPTIONS = {"data": DATA, "epochs": 2, "checkpoint_every": 5}


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.tied:tied", dropout=0.0))


def test_the_model_file_gives_the_losses_of_the_training(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """Also of one that was killed, and continued as if it had not been."""
    document = file_of(captured, placements(captured)["replicated"])
    result = train(document, out=tmp_path / "whole", **OPTIONS)
    with killed_after_saving(2):
        train(document, out=tmp_path / "parts", **OPTIONS)
    rest = train(document, out=tmp_path / "parts", resume=True, **OPTIONS)
    assert all(torch.equal(rest.state_dict[n], value) for n, value in result.state_dict.items())
    module = Tied().double()
    module.load_state_dict(torch.load(tmp_path / "whole" / "model.pt"))
    _, (tokens, targets) = data(captured.task.inputs)
    with torch.no_grad():
        loss = F.cross_entropy(module.eval()(tokens), targets).item()
    assert result.epochs[-1].held_out_loss == pytest.approx(loss, rel=1e-9)


def test_a_training_continues_as_plain_pytorch_in_one_stage(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """Weights and moments of a checkpoint contain as many minibatches, those of copies too."""
    options = OPTIONS | {"epochs": 1}
    with killed_after_saving(1):
        train(file_of(captured, placements(captured)["straight"]), out=tmp_path, **options)
    saved = read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert {int(saved["optimizer"][n]["step"]) for n in saved["optimizer"]} == {5}
    alone = Placement.from_assignment([0] * len(captured.graph), (0,))
    result = train(file_of(captured, alone), out=tmp_path, resume=True, **options)

    module = Tied(dropout=0.0).double()
    module.load_state_dict(saved["model"])
    weights = dict(module.named_parameters(remove_duplicate=False))
    adam = torch.optim.Adam(module.parameters(), lr=0.01)
    for name, state in saved["optimizer"].items():
        adam.state[weights[name]] = {k: v for k, v in state.items() if k != "group"}
    (tokens, targets), _ = data(captured.task.inputs)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1)).view(12, BATCH)
    for indices in order[5:]:
        adam.zero_grad()
        F.cross_entropy(module(tokens[indices]), targets[indices]).backward()
        adam.step()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(result.state_dict[name], value, rtol=1e-9, atol=1e-12, msg=name)
