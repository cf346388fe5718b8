"""What became of the workers of an elastic training, a line for every change."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from drlpp.errors import InvalidFile
from drlpp.io.documents import Record, first_problem, parse_mapping
from drlpp.io.json_lines import append, cut_off, read_lines


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
