"""An evaluation that fails loses no epoch: what was trained is kept, and evaluated on resuming."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DataError
from drlpp.runtime import (
    ClusterSession,
    EarlyStopping,
    EpochReport,
    PipelineTrainer,
    TrainerCallbacks,
    TrainingResult,
)
from drlpp.schedule.method import Method
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import data_for, loaders_for, placement_file, same, train


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


def test_the_best_weights_are_kept_if_the_end_comes_before_the_evaluation(
    captured: CapturedModel, tmp_path: Path
) -> None:
    document = placement_file(captured, 0, 1)
    options: dict[str, Any] = {"early_stopping": EarlyStopping(monitor="loss"), "out": tmp_path}
    with killed_after_saving(1):
        train(document, epochs=1, **options)
    assert not (tmp_path / "best.pt").exists()
    result = train(document, epochs=1, resume=True, **options)
    assert same(torch.load(tmp_path / "best.pt", weights_only=True), result.state_dict)


def test_an_epoch_without_held_out_data_is_whole(captured: CapturedModel, tmp_path: Path) -> None:
    document = placement_file(captured, 0)
    loader = loaders_for(data_for(captured))[0]
    for resume in (False, True):
        told: list[EpochReport] = []
        observer = TrainerCallbacks(on_epoch=told.append)
        trainer = PipelineTrainer(document, out=tmp_path, resume=resume, observer=observer)
        assert [r.score for r in trainer.fit(loader, epochs=1).epochs] == [None]
        assert len(told) == (not resume)
