"""A training that diverges stops at once and says what may help; a measurement goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import NotFinite
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession, EarlyStopping
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.loading import train
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of


def sgd(rate: float) -> OptimizerSpec:
    return OptimizerSpec(name="sgd", options={"lr": rate, "momentum": 0.0})


def large(example_inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], ...]:
    """Data with a loss that is finite and gradients above 10."""
    inputs = 1e4 * torch.randn(16, example_inputs[0].shape[1])
    targets = torch.arange(16) % 5
    return (inputs, targets), (inputs[:8], targets[:8])


def one_minibatch(example_inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], ...]:
    """Of which the only update is the last."""
    _, held_out = large(example_inputs)
    return held_out, held_out


@pytest.mark.parametrize("checkpoint_every", [0, 2])
def test_a_training_that_diverges_says_what_may_help_and_what_is_kept(
    captured: CapturedModel, tmp_path: Path, checkpoint_every: int
) -> None:
    document = file_of(captured, in_a_row(captured.graph, 0, 1), optimizer=sgd(1e6))
    kept = rf"; {tmp_path}/checkpoint\S+ has finite weights; .*" if checkpoint_every else ""
    with pytest.raises(
        NotFinite,
        match=r"^training diverged in epoch 1: the loss of minibatch \d+ is (nan|inf) \(counted "
        rf"from 1 since training began\); if all values .* are finite, .* may help{kept}$",
    ):
        train(document, epochs=2, checkpoint_every=checkpoint_every, out=tmp_path)


@pytest.mark.parametrize(("data", "checkpoint_every"), [("large", 1), ("one_minibatch", 0)])
def test_weights_that_are_not_finite_are_no_checkpoint(
    captured: CapturedModel, tmp_path: Path, data: str, checkpoint_every: int
) -> None:
    """The update after the last loss makes them so, which no loss has told yet."""
    document = file_of(captured, in_a_row(captured.graph, 0), optimizer=sgd(1e38))
    options: dict[str, Any] = {"early_stopping": EarlyStopping(monitor="score"), "epochs": 1}
    with pytest.raises(NotFinite, match=r"epoch 1: \S+ has values that .* may help$"):
        train(
            document,
            data=f"{__name__}:{data}",
            checkpoint_every=checkpoint_every,
            out=tmp_path,
            **options,
        )
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert not (tmp_path / "best.pt").exists()


def test_a_measurement_goes_on(captured: CapturedModel) -> None:
    with ClusterSession(captured, workers=2, optimizer=sgd(1e38)) as session:
        outcome = session.measure(in_a_row(captured.graph, 0, 1), minibatches=20)
    assert isinstance(outcome, Measurement)
