"""Training through a ``DataLoader`` gives the bits of training on the same samples in memory."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import PipelineTrainer
from drlpp.schedule.method import Method
from tests.support.in_turns import fast_are, words
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import data_for, loaders_for, placement_file, same

METHODS = [
    ((0, 1, 2), Method(policy="pipeoptim")),
    ((0, 1, 2), Method(policy="pipeoptim", recompute=True)),
    ((0, 0, 1), Method(policy="stash")),
    ((0, 1, 1), Method(policy="2bw", accumulate=4)),
    ((0, 1), Method(schedule="gpipe", policy="sync", microbatches=4)),
    ((0, 1), Method(schedule="1f1b-flush", policy="sync", accumulate=6)),
]


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))


@pytest.mark.parametrize("trained", fast_are(METHODS[::2], METHODS), ids=words)
def test_a_loader_gives_the_weights_of_samples_in_memory(
    captured: CapturedModel, tmp_path: Path, trained: tuple[tuple[int, ...], Method]
) -> None:
    accelerators, method = trained
    document = placement_file(captured, *accelerators, method=method)
    data = data_for(captured)
    wanted = PipelineTrainer(document, out=tmp_path / "memory").fit(data, epochs=2)
    train, held_out = loaders_for(data)
    found = PipelineTrainer(document, out=tmp_path / "loader").fit(train, held_out, epochs=2)
    assert same(found.state_dict, wanted.state_dict)
    for report, other in zip(found.epochs, wanted.epochs, strict=True):
        assert (report.loss, report.held_out_loss, report.score) == (
            other.loss,
            other.held_out_loss,
            other.score,
        )
    assert found.module_score == wanted.module_score


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", [96, 93])
def test_a_shuffling_loader_gives_the_weights_of_a_plain_loop_over_it(
    captured: CapturedModel, tmp_path: Path, drop_last: bool, samples: int
) -> None:
    """Also when it is resumed within the second epoch, with a generator that begins anew."""
    data = data_for(captured).train
    dataset = TensorDataset(data.inputs[0][:samples], data.targets[:samples])

    def shuffling() -> DataLoader:
        generator = torch.Generator().manual_seed(7)
        return DataLoader(dataset, 8, shuffle=True, drop_last=drop_last, generator=generator)

    task = captured.reference.build()
    document = placement_file(captured, 0, method=Method(policy="sync"))
    options = {"out": tmp_path, "checkpoint_every": 5}
    with killed_after_saving(4):
        PipelineTrainer(document, **options).fit(shuffling(), epochs=4)
    found = PipelineTrainer(document, resume=True, **options).fit(shuffling(), epochs=4)

    task.module.load_state_dict(captured.state)
    loader = shuffling()
    optimizer = document.optimizer.find()(task.module.parameters(), **document.optimizer.complete)
    assert task.loss is not None
    for _ in range(4):
        for inputs, targets in loader:
            if len(inputs) == 8:
                optimizer.zero_grad()
                task.loss(task.module(inputs), targets).backward()
                optimizer.step()
    for name, value in task.module.state_dict().items():
        torch.testing.assert_close(found.state_dict[name], value, rtol=1e-5, atol=1e-6)
