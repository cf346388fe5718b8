"""An evaluation that fails loses no epoch: what was trained is kept, and evaluated on resuming."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DataError, NotFinite
from drlpp.placement.measurement import Measurement
from drlpp.runtime import (
    ClusterSession,
    EarlyStopping,
    EpochReport,
    PipelineTrainer,
    TrainerCallbacks,
    TrainingResult,
)
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.loading import data_for, loaders_for, placement_file, same, train
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of


class Spoiled(TensorDataset):
    """One of its samples cannot be read from some time on."""

    bad = False

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if self.bad and index == 17:
            raise OSError("sample 17 is damaged")
        return tuple(super().__getitem__(index))


def known(result: TrainingResult) -> list[tuple[float | None, ...]]:
    return [(report.loss, report.held_out_loss, report.score) for report in result.epochs]


def test_a_held_out_sample_that_cannot_be_read_costs_no_epoch(
    captured: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = placement_file(captured, 0, 1, method=Method(policy="2bw", accumulate=2))
    early_stopping = EarlyStopping(patience=1, monitor="loss")
    data = data_for(captured)
    held_out = Spoiled(*data.test.inputs, data.test.targets)

    def fit(out: str, **options: Any) -> TrainingResult:
        trainer = PipelineTrainer(
            document, out=tmp_path / out, early_stopping=early_stopping, **options
        )
        return trainer.fit(loaders_for(data)[0], DataLoader(held_out, 8), epochs=3)

    def spoil(report: EpochReport) -> None:
        held_out.bad = True

    whole = fit("whole")
    with pytest.raises(
        DataError,
        match=r"evaluating epoch 2, which is saved.* the held-out loader raised .* sample 17",
    ):
        fit("parts", observer=TrainerCallbacks(on_epoch=spoil))
    held_out.bad = False
    run, runs = ClusterSession.run, []

    def count(session: ClusterSession, *arguments: Any, **options: Any) -> Any:
        runs.append(True)
        return run(session, *arguments, **options)

    monkeypatch.setattr(ClusterSession, "run", count)
    told: list[EpochReport] = []
    rest = fit("parts", resume=True, observer=TrainerCallbacks(on_epoch=told.append))
    assert len(runs) == len(whole.epochs) - 2
    assert [report.epoch for report in told] == [report.epoch for report in whole.epochs[1:]]
    assert known(rest) == known(whole)
    assert same(rest.state_dict, whole.state_dict)
    assert rest.epochs[1].minibatches_per_second > 0


def test_an_epoch_without_held_out_data_is_whole(captured: CapturedModel, tmp_path: Path) -> None:
    document = placement_file(captured, 0)
    loader = loaders_for(data_for(captured))[0]
    for resume in (False, True):
        told: list[EpochReport] = []
        observer = TrainerCallbacks(on_epoch=told.append)
        trainer = PipelineTrainer(document, out=tmp_path, resume=resume, observer=observer)
        assert [r.score for r in trainer.fit(loader, epochs=1).epochs] == [None]
        assert len(told) == (not resume)


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
