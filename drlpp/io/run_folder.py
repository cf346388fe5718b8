"""The output folder of a run: of one process at a time, resumed by the same run only.

A run that has not kept anything yet, because it failed before its first checkpoint for instance,
is no reason to keep the folder: the same command may begin anew in it, with other settings too.
Whoever resumes where there is nothing yet begins: one command suits a loop that restarts it.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from drlpp.errors import InvalidInput
from drlpp.io.documents import Document, read_document, write_document
from drlpp.io.files import is_temporary, remove_temporary_files
from drlpp.io.folder_lock import LOCK_NAME, locked_folder

RECORD_NAME = "run.json"
"""The file that says what a folder holds."""

OPTIONS_NAME = "run.yaml"
"""The options of the command that filled a folder, as it takes them again."""

REPORT_NAME = "report.html"
"""The page about a run, which can be written again at any time."""

CHANGES_NAME = "changes.jsonl"
"""What became of the workers of an elastic training."""

AGENT_NAME = "agent.zip"
"""The agent of a run that learns."""

_EVENTS = "events.out.tfevents.*"


class RunRecord(Document):
    """What a folder holds: the command that filled it, and the settings that decide its result.

    ``started_as`` is the command line that began it; None in older files, and where a terminal
    could not show it.
    """

    kind: ClassVar[str] = "run"

    command: str
    settings: dict[str, Any]
    started_as: str | None = None


@contextmanager
def open_run_folder(
    folder: Path,
    command: str,
    settings: Mapping[str, Any],
    *,
    resume: bool,
    note: Callable[[str], None] = lambda note: None,
) -> Iterator[Path]:
    """Claim ``folder`` for a run, or resume the run that it holds, and lend it to the block.

    Until the end of the block no other process may claim it; all may read it. A run of the same
    command that has kept nothing but TensorBoard's events and a report is begun anew. Temporary
    files of runs that were killed are removed.

    Args:
        folder: the folder for everything that the run writes.
        command: the command that was given.
        settings: the settings that decide the run's result.
        resume: continue the run in the folder, or begin it if there is nothing to continue.
        note: called with a line if a run begins that was to be resumed.

    Raises:
        InvalidInput: the folder holds something else, or a run with other settings, or another
            process writes there, or it has no name in UTF-8.
        StorageFailure: the disk is full.
    """
    record_path = folder / RECORD_NAME
    try:
        # Before anything is written there.
        _check_usable(folder)
    except OSError as error:
        raise InvalidInput(
            f"{folder}: cannot be used ({error.strerror}); give another folder with --out"
        ) from None
    with locked_folder(folder) as alone:
        if alone:
            remove_temporary_files(folder)
        record = read_document(record_path, RunRecord) if record_path.exists() else None
        if record is not None and (record.command != command or _kept_anything(folder)):
            _check_same_run(folder, record, command, settings, resume)
            yield folder
            return
        if resume:
            note(f"{folder} holds nothing to resume yet: the run begins")
        for events in folder.glob(_EVENTS):
            events.unlink()
        for name in (REPORT_NAME, CHANGES_NAME):
            (folder / name).unlink(missing_ok=True)
        record = RunRecord(
            command=command, settings=dict(settings), started_as=_this_command_line()
        )
        write_document(record_path, record)
        yield folder


def _this_command_line() -> str | None:
    line = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return line if line.isprintable() else None


def _check_usable(folder: Path) -> None:
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"the folder {str(folder)!r} has a name that is no UTF-8, which TensorBoard's files "
            "need; give another folder with --out"
        ) from None
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file; give a folder with --out")
    links = [path for path in folder.glob("*") if path.is_symlink()]
    if links:
        raise InvalidInput(
            f"{links[0]} is a symbolic link, and a run writes to nothing outside of its folder; "
            "remove it, or put what it leads to in its place"
        )
    if folder.exists() and not (folder / RECORD_NAME).exists() and _holds_anything(folder):
        raise InvalidInput(
            f"{folder} is not empty and holds no run of drlpp; give another folder with --out"
        )


def _check_same_run(
    folder: Path, record: RunRecord, command: str, settings: Mapping[str, Any], resume: bool
) -> None:
    if not resume:
        raise InvalidInput(
            f"{folder} holds a run already ({record.command}); continue it (--resume, in Python "
            "resume=True), or give another folder (--out, out)"
        )
    if record.command != command:
        raise InvalidInput(
            f"{folder} holds a run of {record.command}, which {command} cannot resume"
        )
    for key, known in record.settings.items():
        # What the record lacks, an older drlpp did not know to compare.
        if _said(known) != _said(settings.get(key)):
            raise InvalidInput(
                f"{folder} holds a run with {key} = {known!r}; it cannot be resumed with "
                f"{settings.get(key)!r}"
            )


def _said(value: Any) -> Any:
    """Return a setting without options that say nothing, such as one that there is no more."""
    if isinstance(value, dict):
        return {key: _said(inner) for key, inner in value.items() if inner is not None}
    return [_said(inner) for inner in value] if isinstance(value, list) else value


def _holds_anything(folder: Path) -> bool:
    return any(file.name != LOCK_NAME and not is_temporary(file) for file in folder.iterdir())


def _kept_anything(folder: Path) -> bool:
    """Return whether there is more than a run's record, options, report and events."""
    passing = {RECORD_NAME, OPTIONS_NAME, REPORT_NAME, CHANGES_NAME, LOCK_NAME}
    return any(
        file.name not in passing and not file.match(_EVENTS) and not is_temporary(file)
        for file in folder.iterdir()
    )
