"""Evaluated epochs: none is lost by a failure, the best one counts, divergence ends them."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DataError, InvalidFile, NotFinite
from drlpp.placement.measurement import Measurement
from drlpp.planners.replanning import Elastic
from drlpp.runtime import (
    ClusterSession,
    Deployment,
    EarlyStopping,
    EpochReport,
    PipelineTrainer,
    TrainerCallbacks,
    TrainingResult,
)
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import DATA, data_for, loaders_for, placement_file, same, train
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
    assert not (tmp_path / "checkpoint.pt").exists()
    assert not (tmp_path / "best.pt").exists()


def test_a_measurement_goes_on(captured: CapturedModel) -> None:
    with ClusterSession(captured, workers=2, optimizer=sgd(1e38)) as session:
        outcome = session.measure(in_a_row(captured.graph, 0, 1), minibatches=20)
    assert isinstance(outcome, Measurement)


def reports(*scores: float) -> list[EpochReport]:
    return [
        EpochReport(epoch, 0.0, 10.0 - score, score, 1.0)
        for epoch, score in enumerate(scores, start=1)
    ]


@pytest.mark.parametrize(
    ("stopping", "scores", "best", "over"),
    [
        (EarlyStopping(patience=2), [1, 2, 3], 3, False),
        (EarlyStopping(patience=2), [1, 3, 3], 2, False),
        (EarlyStopping(patience=2), [1, 3, 3, 2], 2, True),
        (EarlyStopping(patience=2), [1, 3, 2, 4], 4, False),
        (EarlyStopping(patience=2, min_delta=0.5), [1, 1.4, 1.4], 1, True),
        (EarlyStopping(patience=2, min_delta=0.5), [1, 1.4, 1.8], 3, False),
        (EarlyStopping(patience=1), [1], 1, False),
        (EarlyStopping(patience=2), [math.nan, 1, 0], 2, False),
        (EarlyStopping(patience=2), [1, math.nan, 2], 3, False),
        (EarlyStopping(patience=2), [math.nan, math.nan, math.nan], 1, True),
    ],
)
def test_it_ends_after_epochs_that_were_no_better(
    stopping: EarlyStopping, scores: list[float], best: int, over: bool
) -> None:
    for monitor in (None, "score", "loss"):
        chosen = stopping.model_copy(update={"monitor": monitor})
        assert chosen.best(reports(*scores)).epoch == best
        assert chosen.is_over(reports(*scores)) == over


def test_a_worker_that_is_lost_with_the_best_weights_costs_no_epoch(
    captured: CapturedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, killed = ClusterSession.collect, list[int]()

    def losing(session: ClusterSession, deployment: Deployment) -> object:
        if not killed:
            killed.append(session.process_ids[0])
            os.kill(killed[0], signal.SIGKILL)
        return collect(session, deployment)

    def fit(folder: str) -> TrainingResult:
        quiet = TrainerCallbacks(on_note=lambda note: None)
        options = {"early_stopping": EarlyStopping(patience=2), "elastic": Elastic(2, 2)}
        trainer = PipelineTrainer(
            placement_file(captured, 0, 1), out=tmp_path / folder, observer=quiet, **options
        )
        return trainer.fit(DATA, epochs=2)

    whole = fit("whole")
    monkeypatch.setattr(ClusterSession, "collect", losing)
    found = fit("lost")
    assert killed
    assert [report.epoch for report in found.epochs] == [1, 2]
    assert same(found.state_dict, whole.state_dict)


def test_the_best_epoch_gives_the_weights_also_after_a_kill(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """A learning rate that is too large makes later epochs worse."""
    document = placement_file(captured, 0, 1).model_copy(
        update={"optimizer": OptimizerSpec(name="sgd", options={"lr": 3.0})}
    )
    options = {"early_stopping": EarlyStopping(patience=2, monitor="loss")}
    whole = PipelineTrainer(document, out=tmp_path / "whole", **options).fit(DATA, epochs=30)
    losses = [report.held_out_loss for report in whole.epochs]
    best = losses.index(min(losses))
    assert len(losses) == best + 3 < 30
    only = PipelineTrainer(document, out=tmp_path / "only").fit(DATA, epochs=best + 1)
    assert same(whole.state_dict, only.state_dict)
    for file in ("best.pt", "model.pt"):
        kept = torch.load(tmp_path / "whole" / file, weights_only=True)
        assert same(kept, whole.state_dict)
    assert not (tmp_path / "only" / "best.pt").exists()

    with killed_after_saving(best + 2):
        PipelineTrainer(document, out=tmp_path / "parts", **options).fit(DATA, epochs=30)
    again = PipelineTrainer(document, out=tmp_path / "parts", resume=True, **options)
    rest = again.fit(DATA, epochs=30)
    assert same(rest.state_dict, whole.state_dict)
    assert [report.held_out_loss for report in rest.epochs] == losses


@pytest.mark.parametrize("damaged", [None, b"no weights"])
def test_the_weights_of_the_best_epoch_are_looked_for_before_training_goes_on(
    captured: CapturedModel, tmp_path: Path, damaged: bytes | None
) -> None:
    options = {"early_stopping": EarlyStopping(), "out": tmp_path}
    document = placement_file(captured, 0)
    PipelineTrainer(document, **options).fit(DATA, epochs=2)
    best = tmp_path / "best.pt"
    best.unlink()
    if damaged is not None:
        best.write_bytes(damaged)
    seen: list[EpochReport] = []
    observer = TrainerCallbacks(on_epoch=seen.append)
    again = PipelineTrainer(document, resume=True, observer=observer, **options)
    with pytest.raises(
        InvalidFile, match=r"the weights of the best epoch so far cannot be read: .*best.pt: "
    ):
        again.fit(DATA, epochs=3)
    assert not seen
