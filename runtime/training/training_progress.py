"""How far a training is: its epochs and losses, and where one continues that has lost workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.training.checkpoints.checkpoint import TrainingCheckpoint
from drlpp.runtime.training.checkpoints.evaluation_file import evaluation_of
from drlpp.runtime.training.data.training_data import LoaderState
from drlpp.runtime.training.training_reports import EpochReport
from drlpp.schedule.actions import MicrobatchId


@dataclass
class TrainingProgress:
    """How far a training is.

    ``reports`` are of whole epochs, of which the last may not be ``evaluated`` yet. Of the next,
    the minibatches before number ``position`` are done, with these ``losses``, by a pipeline that
    was empty before number ``began``.
    """

    reports: list[EpochReport] = field(default_factory=list)
    began: int = 0
    position: int = 0
    losses: dict[MicrobatchId, float] = field(default_factory=dict)
    evaluated: bool = True

    @classmethod
    def of(cls, saved: TrainingCheckpoint, evaluation: Path) -> TrainingProgress:
        """Return that of a checkpoint, and of what was found when its last epoch was evaluated."""
        found = None if saved.evaluated else evaluation_of(evaluation, saved.epochs)
        return cls(
            [*saved.epochs[:-1], found] if found else saved.epochs,
            saved.began,
            saved.position,
            saved.losses,
            evaluated=saved.evaluated or found is not None,
        )

    def facts(self, deployed: str, data: LoaderState) -> dict[str, Any]:
        """Return what a checkpoint has besides what workers hold.

        Args:
            deployed: the placement and method.
            data: how the loader was at the beginning of the epoch.
        """
        return {
            "deployed": deployed,
            "epochs": [asdict(report) for report in self.reports],
            "began": self.began,
            "position": self.position,
            "losses": self.losses,
            "data": data,
            "evaluated": self.evaluated,
        }


class ResumePoint(NamedTuple):
    """Where a training continues that has lost workers.

    Attributes:
        epochs: whole epochs that are done there.
        minibatches: of the next epoch that are.
        source: where the state comes from, in words; empty for a checkpoint of this moment.
        lost_minibatches: that were done after it, as far as workers had said.
        lost_seconds: since it was kept, or last continued from.
    """

    epochs: int
    minibatches: int
    source: str = ""
    lost_minibatches: int = 0
    lost_seconds: float = 0.0


def losses_of(results: Mapping[int, RunResult], began: int) -> dict[MicrobatchId, float]:
    """Return the loss of every part, numbered from the beginning of the epoch."""
    losses: dict[MicrobatchId, float] = {}
    for result in results.values():
        losses |= numbered(result.losses, began)
    return losses


def numbered(losses: Mapping[MicrobatchId, float], began: int) -> dict[MicrobatchId, float]:
    """Return the losses of a run that began with minibatch number ``began`` of its epoch."""
    return {
        (minibatch + began, microbatch): loss for (minibatch, microbatch), loss in losses.items()
    }


def mean_losses(losses: Mapping[MicrobatchId, float]) -> dict[int, float]:
    """Return every minibatch's mean over its parts; their number may change on resuming."""
    parts: dict[int, list[float]] = {}
    for (minibatch, _), loss in losses.items():
        parts.setdefault(minibatch, []).append(loss)
    return {minibatch: sum(of_one) / len(of_one) for minibatch, of_one in sorted(parts.items())}
