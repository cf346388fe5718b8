"""A training that diverges stops at once; a measurement is about time and goes on."""

from pathlib import Path

import pytest
import torch

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import DataError, NotFinite
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession, EarlyStopping
from drlpp.runtime.ipc.tensor_file import read_checkpoint
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.loading import train
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

HUGE = OptimizerSpec(name="sgd", options={"lr": 1e38, "momentum": 0.0})


def large(
    example_inputs: tuple[torch.Tensor, ...],
) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Data with a loss that is finite and gradients above 10."""
    inputs = 1e4 * torch.randn(16, example_inputs[0].shape[1])
    targets = torch.arange(16) % 5
    return (inputs, targets), (inputs[:8], targets[:8])


def one_minibatch(
    example_inputs: tuple[torch.Tensor, ...],
) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Of which the only update is the last."""
    _, held_out = large(example_inputs)
    return held_out, held_out


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))


def poisoned(
    example_inputs: tuple[torch.Tensor, ...],
) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Data of which one sample, in some minibatch of an epoch, is not a number."""
    inputs = torch.randn(96, example_inputs[0].shape[1])
    inputs[50] = torch.nan
    targets = torch.zeros(96, dtype=torch.int64)
    return (inputs, targets), (inputs[:8], targets[:8])


def test_a_loss_that_is_not_a_number_stops_at_its_minibatch(
    captured: CapturedModel, tmp_path: Path
) -> None:
    document = file_of(captured, in_a_row(captured.graph, 0, 1))
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1)).view(12, 8)
    minibatch = int((order == 50).any(1).nonzero()) + 1
    with pytest.raises(
        DataError,
        match=rf"of sample 50 .* and the loss of minibatch {minibatch} is nan \(counted from 1 ",
    ):
        train(document, data=f"{__name__}:poisoned", epochs=2, checkpoint_every=1, out=tmp_path)
    saved = read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert 0 < saved["position"] < minibatch
    assert all(value.isfinite().all() for value in saved["model"].values())


@pytest.mark.parametrize("checkpoint_every", [0, 2])
def test_a_training_that_diverges_says_what_may_help_and_what_is_kept(
    captured: CapturedModel, tmp_path: Path, checkpoint_every: int
) -> None:
    fast = OptimizerSpec(name="sgd", options={"lr": 1e6, "momentum": 0.0})
    document = file_of(captured, in_a_row(captured.graph, 0, 1), optimizer=fast)
    kept = rf"; {tmp_path}/checkpoint\S+ has finite weights; .*" if checkpoint_every else ""
    with pytest.raises(
        NotFinite,
        match=r"^training diverged in epoch 1: the loss of minibatch \d+ is (nan|inf) \(counted "
        rf"from 1 since training began\); a lower learning rate, .* or float32 may help{kept}$",
    ):
        train(document, epochs=2, checkpoint_every=checkpoint_every, out=tmp_path)


@pytest.mark.parametrize(("data", "checkpoint_every"), [("large", 1), ("one_minibatch", 0)])
def test_weights_that_are_not_finite_are_no_checkpoint(
    captured: CapturedModel, tmp_path: Path, data: str, checkpoint_every: int
) -> None:
    """The update after the last loss makes them so, which no loss has told yet."""
    document = file_of(captured, in_a_row(captured.graph, 0), optimizer=HUGE)
    stopping = EarlyStopping(monitor="score")
    with pytest.raises(NotFinite, match=r"epoch 1: \S+ has values that .* may help$"):
        train(
            document,
            data=f"{__name__}:{data}",
            epochs=1,
            checkpoint_every=checkpoint_every,
            early_stopping=stopping,
            out=tmp_path,
        )
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert not (tmp_path / "best.pt").exists()


def test_a_measurement_goes_on(captured: CapturedModel) -> None:
    with ClusterSession(captured, workers=2, optimizer=HUGE) as session:
        outcome = session.measure(in_a_row(captured.graph, 0, 1), minibatches=20)
    assert isinstance(outcome, Measurement)
