"""What a training reports, and what of it stays in the run's folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, ValidationError

from drlpp.errors import InvalidFile, StorageFailure
from drlpp.io.disk_errors import reporting_disk_errors
from drlpp.io.documents import (
    Document,
    Record,
    first_problem,
    parse_mapping,
    read_document,
    write_document,
)
from drlpp.io.json_lines import append, cut_off, read_lines


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


OTHER_PLACEMENT = (
    "the checkpoint is of another placement or method: its weights are gone on with, and "
    "minibatches that were in flight are sent again"
)


@dataclass(frozen=True)
class TrainerCallbacks:
    """Hears how training goes: when it begins, every few minibatches, and after every epoch.

    ``on_other_placement`` is called if a checkpoint of another placement or method is resumed,
    ``on_note`` with a sentence about the data, or about an epoch, that a user should know. Both
    warn if nothing else is given.

    ``on_staleness`` is called before training where updates come between forwards and backwards,
    with a line of how many and what that costs (:attr:`PipelineTrainer.staleness`).
    """

    on_begin: Callable[[], None] = lambda: None
    on_progress: Callable[[ProgressReport], None] = lambda report: None
    on_epoch: Callable[[EpochReport], None] = lambda report: None
    on_other_placement: Callable[[], None] = lambda: warnings.warn(OTHER_PLACEMENT, stacklevel=2)
    on_note: Callable[[str], None] = lambda note: warnings.warn(note, stacklevel=2)
    on_staleness: Callable[[str], None] = lambda line: None


class EvaluationFile(Document):
    """The report of the last epoch that was evaluated."""

    # A held-out loss may be infinite or not a number.
    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="constants")

    kind: ClassVar[str] = "evaluation"

    epoch: int
    loss: float
    held_out_loss: float | None = None
    score: float | None = None
    minibatches_per_second: float


def write_evaluation(path: Path, report: EpochReport) -> None:
    """Keep what was found of an epoch, next to the checkpoint that was written before.

    So an evaluation that fails loses no epoch, and one that succeeds writes no checkpoint again.

    Raises:
        StorageFailure: the disk is full or cannot be written; ``path`` is as it was.
    """
    try:
        with reporting_disk_errors(path):
            write_document(path, EvaluationFile(**asdict(report)))
    except InvalidFile as error:
        raise StorageFailure(str(error)) from None


def evaluation_of(path: Path, epochs: Sequence[EpochReport]) -> EpochReport | None:
    """Return what is known of the last of ``epochs``, not yet evaluated in its checkpoint.

    None if nothing is: another epoch was evaluated last, or there is no such file, or one that
    cannot be read. Evaluating again gives the same.
    """
    try:
        found = EpochReport(**read_document(path, EvaluationFile).model_dump())
    except InvalidFile:
        return None
    as_trained = replace(found, held_out_loss=None, score=None)
    return found if as_trained == epochs[-1] else None


class WorkersChanged(Record):
    """Some workers were replaced, given up, or have returned; training continues.

    Attributes:
        reason: what happened, in words.
        given_up, returned: numbers of workers.
        workers: that there are now.
        epochs: whole epochs that were done.
        minibatches: of the next epoch that were done; those after them are computed again.
        configuration: replicas per stage of the placement that training continues with.
        source: of the state that training continues from, in words; empty for a checkpoint that was
            made a moment ago.
        lost_minibatches: that were done after that state, as far as workers had said, and are
            computed again.
        lost_seconds: since that state was kept, or last continued from.
    """

    reason: str
    given_up: tuple[int, ...] = ()
    returned: tuple[int, ...] = ()
    workers: tuple[int, ...]
    epochs: int
    minibatches: int
    configuration: str
    source: str = ""
    lost_minibatches: int = 0
    lost_seconds: float = 0.0

    @property
    def text(self) -> str:
        """The change in one line."""
        place = f"epoch {self.epochs + 1}"
        if self.minibatches:
            place = f"minibatch {self.minibatches + 1} of {place}"
        origin = f" from {self.source}" if self.source else ""
        lost = (
            f"; {self.lost_minibatches} minibatches and {self.lost_seconds:.1f} s are lost"
            if self.source
            else ""
        )
        return (
            f"{self.reason}; training continues{origin} at {place} on {len(self.workers)} workers, "
            f"{self.configuration}{lost}"
        )


def read_changes(path: Path) -> tuple[WorkersChanged, ...]:
    """Return the changes of a training, none if there is no file; a half last line is left out.

    Raises:
        InvalidFile: a line is none of them.
    """
    found = []
    for number, line in enumerate(read_lines(path)[0], 1):
        content = parse_mapping(line, f"{path}, line {number}", is_yaml=False)
        try:
            found.append(WorkersChanged.model_validate(content))
        except ValidationError as error:
            raise InvalidFile(f"{path}, line {number}: {first_problem(error)}") from None
    return tuple(found)


def write_change(path: Path, change: WorkersChanged) -> None:
    """Append a change to the file of a run.

    Raises:
        StorageFailure: it cannot be written; the lines before are kept.
    """
    # A kill may have left half a line.
    cut_off(path, read_lines(path)[1])
    append(path, change)
