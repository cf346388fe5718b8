"""How far a training is, where it continues, and what is said of one that fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from drlpp.errors import DRLPPError, NotFinite, RunFailure
from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.training.checkpoints.checkpoint import TrainingCheckpoint
from drlpp.runtime.training.checkpoints.checkpoint_store import CheckpointStore
from drlpp.runtime.training.data.training_data import LoaderState
from drlpp.runtime.training.training_reports import EpochReport, evaluation_of
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


def with_way_on(
    failure: RunFailure, checkpoint: CheckpointStore, epochs: int, position: int
) -> RunFailure:
    """Return the same failure, with how to resume in its message.

    Args:
        failure: of the workers or the data.
        checkpoint: the last, which need not be there.
        epochs: that it has, if it is there.
        position: minibatches of the next epoch that it has.
    """
    if not checkpoint.exists():
        kept = (
            "nothing had been saved yet, so the same command begins anew (--checkpoint-every, "
            "checkpoint_every save within an epoch)"
        )
    else:
        parts = [f"epoch {epochs}"] if epochs else []
        parts += [f"{position} minibatches of epoch {epochs + 1}"] if position else []
        kept = (
            f"{checkpoint} has all up to {' and '.join(parts)}, and the same command with "
            "--resume (in Python resume=True) continues there"
        )
    return type(failure)(f"{failure}; {kept}")


def diverged(
    error: NotFinite, bad_data: str | None, epoch: int, checkpoint: CheckpointStore
) -> NotFinite:
    """Return the same error, with what may help and what is kept.

    Args:
        error: of the loss or the weights.
        bad_data: values of the data that are not finite; None if there were none. A model may mask
            them, so they need not be to blame.
        epoch: of that loss.
        checkpoint: the last, which need not be there.
    """
    text = f"training diverged in epoch {epoch}: {error}; "
    if bad_data:
        text += (
            f"the data to train on is not finite: {bad_data}; mend or leave out such samples, or "
            "mask them in the model; otherwise "
        )
    text += "a lower learning rate, a warm_up, clip_norm, synchronous epochs or float32 may help"
    if checkpoint.exists():
        text += (
            f"; {checkpoint} has finite weights; a resumed run starts from them, with another "
            "clip_norm or precision if you like, but with the same rates and epochs"
        )
    return NotFinite(text, error.minibatch)


@contextmanager
def telling_what_is_kept(epoch: int) -> Iterator[None]:
    """Say of whatever fails in the block that it was the evaluation of an epoch that is saved."""
    try:
        yield
    except DRLPPError as error:
        raise type(error)(
            f"evaluating epoch {epoch}, which is saved, and is evaluated again when this run "
            f"is resumed: {error}"
        ) from error
