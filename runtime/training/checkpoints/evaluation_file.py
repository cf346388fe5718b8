"""What the evaluation of an epoch gave, kept next to the checkpoint that was written before it.

So an evaluation that fails loses no epoch, and one that succeeds writes no checkpoint again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from drlpp.errors import InvalidFile, StorageFailure
from drlpp.io.disk_errors import reporting_disk_errors
from drlpp.io.documents import Document, read_document, write_document
from drlpp.runtime.training.training_reports import EpochReport


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
    """Keep what was found of an epoch.

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
