"""How long to train, what ends a training early, and what it reports."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from drlpp.errors import InvalidInput, ModelNote
from drlpp.io.documents import Record, first_problem
from drlpp.io.files import append, cut_off, read_lines
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.runtime.training.training_data import TrainingData
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec


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
    """Within an epoch: how many of its minibatches are done, their loss of late, and speed.

    That is since the epoch began or was resumed, without the time that checkpoints take.
    """

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
    on_note: Callable[[str], None] = lambda note: warnings.warn(note, ModelNote, 2)
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


class EarlyStopping(Record):
    """Training ends after ``patience`` epochs in a row that were no better than the best before.

    Attributes:
        patience: epochs to wait for something better.
        min_delta: what an epoch has to be better by to count as better.
        monitor: ``score`` (more is better) or ``loss`` (less is better), both on held-out data;
            by default the score where the model's task has one. A value that is not a number is
            worse than any other.

    Raises:
        InvalidInput: there is no such option, or it is out of range.
    """

    patience: int = Field(default=3, ge=1)
    min_delta: float = Field(default=0.0, ge=0)
    monitor: Literal["score", "loss"] | None = None

    def __init__(self, patience: int = 3, **options: Any) -> None:
        try:
            super().__init__(**{"patience": patience, **options})
        except ValidationError as error:
            raise InvalidInput(
                f"early stopping: {first_problem(error)}; it has patience, min_delta and monitor "
                "(score or loss)"
            ) from None

    def best(self, reports: Sequence[EpochReport]) -> EpochReport:
        """Return the best epoch; the first of those that are equally good."""
        best = reports[0]
        for report in reports[1:]:
            if self._goodness(report) > self._goodness(best) + self.min_delta:
                best = report
        return best

    def is_over(self, reports: Sequence[EpochReport]) -> bool:
        """Return whether training ends after these epochs."""
        return bool(reports) and reports[-1].epoch - self.best(reports).epoch >= self.patience

    def _goodness(self, report: EpochReport) -> float:
        monitor = self.monitor or ("loss" if report.score is None else "score")
        value = report.score if monitor == "score" else report.held_out_loss
        # TrainingPlan.check has seen that it is known.
        if value is None or math.isnan(value):
            return -math.inf
        return value if monitor == "score" else -value


@dataclass(frozen=True)
class TrainingPlan:
    """How long to train, and what happens meanwhile, as :class:`PipelineTrainer` is told."""

    epochs: int
    learning_rate: LearningRateSchedule | None = None
    synchronous_epochs: int = 0
    checkpoint_every: int = 0
    early_stopping: EarlyStopping | None = None

    def check(self, model: object, has_score: bool, data: TrainingData) -> None:
        """Check that early stopping has something to monitor.

        Raises:
            InvalidInput: it has not.
        """
        if self.early_stopping is None:
            return
        if not data.held_out_count.samples:
            raise InvalidInput("early stopping needs held-out data to tell what is better")
        if self.early_stopping.monitor == "score" and not has_score:
            raise InvalidInput(
                f"early stopping monitors the score, but model {model} has none; "
                "monitor the loss, or let its factory return a score"
            )

    def rates(self, optimizer: OptimizerSpec, minibatches_per_epoch: int) -> list[float] | None:
        """Return the learning rate of every minibatch, None if it stays the optimizer's.

        Raises:
            InvalidInput: if the schedule does not suit the training.
        """
        if self.learning_rate is None:
            return None
        minibatches = self.epochs * minibatches_per_epoch
        return self.learning_rate.rates(optimizer.rate, minibatches, minibatches_per_epoch)

    def stops(self, plan: ExecutionPlan, first: int, end: int) -> list[int]:
        """Return before which minibatches of an epoch, from ``first`` on, the pipeline drains.

        That is before ``end``, and where checkpoints are due, behind whole updates of all stages.
        """
        if not self.checkpoint_every:
            return [end]
        together = plan.method.minibatches_together(plan.pipeline)
        every = -(-self.checkpoint_every // together) * together
        return [*range(first + every, end, every), end]

    def check_not_beyond(self, done: int, position: int) -> str | None:
        """Check that no more epochs and minibatches are done than are wanted, or return a note.

        Raises:
            InvalidInput: the training is within an epoch after the last.
        """
        if done >= self.epochs and position:
            raise InvalidInput(
                f"this run has done {done} epochs and {position} minibatches of the next; it "
                f"cannot end after {self.epochs}: give at least {done + 1} epochs"
            )
        if done > self.epochs and not self.early_stopping:
            return (
                f"this run has done {done} epochs already; the weights are those of the last, not "
                f"of epoch {self.epochs}"
            )
        return None
