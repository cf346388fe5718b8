"""A training that diverges stops at once and says what may help; a measurement goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import NotFinite
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession, EarlyStopping, PipelineTrainer, TrainerCallbacks
from drlpp.runtime.ipc.tensor_file import read_checkpoint
from drlpp.runtime.loading.finite_data import is_finite
from drlpp.specs.data import Data, Samples
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
        rf"from 1 since training began\); a lower learning rate, .* or float32 may help{kept}$",
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


class Sums(nn.Module):
    """Of two inputs, the first of which it may mask where it is no number."""

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked = masked
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        hidden = self.first(left.nan_to_num() if self.masked else left)
        return self.head(torch.relu(hidden) + self.second(right)).squeeze(1)


def sums(masked: bool) -> Task:
    inputs = torch.randn(8, 4), torch.randn(8, 4)
    return Task(Sums(masked), inputs, torch.randn(8), F.mse_loss)


def fit(
    out: Path, bad: tuple[str, int], *, masked: bool = False, loaded: bool = False, rate: float
) -> list[str]:
    """What is noted of a training on data with two values of a sample that are no numbers."""
    generator = torch.Generator().manual_seed(7)
    parts = []
    for name, count in (("train", 96), ("held out", 16)):
        left, right = (torch.randn(count, 4, generator=generator) for _ in range(2))
        parts.append(Samples((left, right), left.sum(1)))
        if bad[0] == name:
            left[bad[1], :2] = torch.nan
    captured = capture(ModelReference.named(f"{__name__}:sums", masked=masked))
    notes: list[str] = []
    trainer = PipelineTrainer(
        file_of(captured, in_a_row(captured.graph, 0, 1), optimizer=sgd(rate)),
        model=captured,
        checkpoint_every=1,
        observer=TrainerCallbacks(on_note=notes.append),
        out=out,
    )
    if loaded:
        train, test = (TensorDataset(*part.inputs, part.targets) for part in parts)
        trainer.fit(DataLoader(train, 8), DataLoader(test, 4), epochs=3)
    else:
        trainer.fit(Data(*parts), epochs=3)
    return notes


@pytest.mark.parametrize("loaded", [False, True])
def test_bad_values_of_the_data_are_named_with_their_place(tmp_path: Path, loaded: bool) -> None:
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1)).view(12, 8)
    minibatch = 7 if loaded else int((order == 50).any(1).nonzero()) + 1
    place = (
        r"2 of 32 values of inputs\[0\] in minibatch 7 of epoch 1 .* sample 2"
        if loaded
        else r"2 of 384 values of inputs\[0\] .* sample 50"
    )
    with pytest.raises(
        NotFinite,
        match=rf"epoch 1: the loss of minibatch {minibatch} is nan .* data to train on is not "
        rf"finite: {place} \(counted from 0\); mend .* otherwise a lower learning rate",
    ):
        fit(tmp_path, ("train", 50), loaded=loaded, rate=1e-6)
    saved = read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert 0 < saved["position"] < minibatch
    assert all(value.isfinite().all() for value in saved["model"].values())


@pytest.mark.parametrize("loaded", [False, True])
def test_bad_values_that_do_no_harm_stop_nothing(tmp_path: Path, loaded: bool) -> None:
    assert fit(tmp_path / "1", ("train", 3), masked=True, loaded=loaded, rate=1e-6) == []
    notes = fit(tmp_path / "2", ("held out", 13), loaded=loaded, rate=1e-6)
    of_data = r"32 values of inputs[0] in minibatch 2" if loaded else "64 values of inputs[0]"
    assert len(notes) == 3
    assert notes[0].startswith(f"the held-out data is not finite: 2 of {of_data}")
    assert notes[0].endswith("score of epoch 1 is not finite either")


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        (torch.full((3, 2), 3e38), True),  # Their sum is infinite.
        (torch.tensor([[1.0, torch.inf], [1.0, -torch.inf]]), False),
        (torch.tensor([[1 + 2j, complex(0, torch.nan)]]), False),
        (torch.tensor([[2**62, 2**62]]), True),
        (torch.zeros(0, 4), True),
    ],
)
def test_finite_tensors_are_told_from_others(values: Tensor, finite: bool) -> None:
    assert is_finite(values) == finite
