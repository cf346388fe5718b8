"""Training through a ``DataLoader`` gives the bits of training on the same samples in memory."""

from pathlib import Path

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import PipelineTrainer
from drlpp.schedule.method import Method
from tests.support.in_turns import fast_are, words
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
