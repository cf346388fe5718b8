"""What a training reports, and what of it stays in the run's folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drlpp.io.documents import Record
from drlpp.io.files import append, cut_off, read_lines


@dataclass(frozen=True)
class EpochReport:
    """One epoch: mean training loss, how it does on held-out data, and speed.

    ``held_out_loss`` and ``score`` are means over all held-out samples, None where there are none;
    ``score`` also where the model's task has no score. For classifiers it is the accuracy.
    """

    epoch: int
    loss: float
    held_out_loss: float | None
    score: float | None
    minibatches_per_second: float


@dataclass(frozen=True)
class ProgressReport:
    """Within an epoch: how many of its minibatches are done, their loss of late, and speed."""

    epoch: int
    done: int
    minibatches: int
    loss: float
    minibatches_per_second: float


@dataclass(frozen=True)
class Stint:
    """A part of a training: how long it took, without evaluations, and how good the model is now.

    Attributes:
        first, done: how many minibatches were done before it, and are done after it.
        seconds: of this part alone.
        held_out_loss, score: on the held-out data, None where there are none.
    """

    first: int
    done: int
    seconds: float
    held_out_loss: float | None
    score: float | None


@dataclass(frozen=True)
class TrainerCallbacks:
    """Hears how training goes: when it begins, every few minibatches, and after every epoch.

    ``on_note`` is called with a sentence about the data, an epoch or a checkpoint that a user
    should know; it warns if nothing else is given. ``on_staleness`` is called before training where
    updates come between forwards and backwards, with a line of how many and what that costs
    (:attr:`PipelineTrainer.staleness`).
    """

    on_begin: Callable[[], None] = lambda: None
    on_progress: Callable[[ProgressReport], None] = lambda report: None
    on_epoch: Callable[[EpochReport], None] = lambda report: None
    on_note: Callable[[str], None] = lambda note: warnings.warn(note, stacklevel=2)
    on_staleness: Callable[[str], None] = lambda line: None


class WorkersChanged(Record):
    """Workers were replaced, given up, have returned, or have another speed; training continues.

    Attributes:
        reason: what happened, in words.
        given_up, returned: numbers of workers.
        workers: that there are now.
        epochs: whole epochs that were done.
        minibatches: of the next epoch that were done; those after them are computed again.
        configuration: replicas per stage of the placement that training continues with.
    """

    reason: str
    given_up: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()
    workers: tuple[int, ...]
    epochs: int
    minibatches: int
    configuration: str

    @property
    def text(self) -> str:
        """The change in one line."""
        place = f"epoch {self.epochs + 1}"
        if self.minibatches:
            place = f"minibatch {self.minibatches + 1} of {place}"
        return (
            f"{self.reason}; training continues at {place} on {len(self.workers)} workers, "
            f"{self.configuration}"
        )


def write_change(path: Path, change: WorkersChanged) -> None:
    """Append a change to the file of a run.

    Raises:
        StorageFailure: it cannot be written; the lines before are kept.
    """
    # A kill may have left half a line.
    cut_off(path, read_lines(path)[1])
    append(path, change)
