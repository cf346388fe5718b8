"""Early stopping: when training ends, and whose weights are the result."""

import math
import os
import signal
from pathlib import Path

import pytest
import torch

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidFile
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
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.killing import killed_after_saving
from tests.support.training.loading import DATA, placement_file, same


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


@pytest.mark.parametrize("damaged", [None, {"other": torch.zeros(2)}])
def test_the_weights_of_the_best_epoch_are_looked_for_before_training_goes_on(
    captured: CapturedModel, tmp_path: Path, damaged: dict[str, torch.Tensor] | None
) -> None:
    options = {"early_stopping": EarlyStopping(), "out": tmp_path}
    document = placement_file(captured, 0)
    PipelineTrainer(document, **options).fit(DATA, epochs=2)
    best = tmp_path / "best.pt"
    best.unlink()
    if damaged is not None:
        torch.save(damaged, best)
    seen: list[EpochReport] = []
    observer = TrainerCallbacks(on_epoch=seen.append)
    again = PipelineTrainer(document, resume=True, observer=observer, **options)
    with pytest.raises(InvalidFile, match=r"best.pt: the weights of the best epoch so far cannot"):
        again.fit(DATA, epochs=3)
    assert not seen
