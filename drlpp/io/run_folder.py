"""The output folder of a run: of one process at a time, resumed by the same run only.

A run that has not kept anything yet, because it failed before its first checkpoint for instance,
is no reason to keep the folder: the same command may begin anew in it, with other settings too.
Whoever resumes where there is nothing yet begins: one command suits a loop that restarts it.

The system gives up the lock of a folder when the process that has it ends, however it ends. Whoever
only reads needs no lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from drlpp.errors import InvalidFile, InvalidInput
from drlpp.io.documents import Document, read_document, write_document
from drlpp.io.files import is_temporary, remove_temporary_files

LOCK_NAME = ".lock"
"""The file in the folder that is locked; it says who had it last."""

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

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""What file systems that know no locks say."""

_held: set[int] = set()
"""Locked files, which forked processes, such as those of a loader, do not hold on to."""


def _let_go() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


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
        line = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        record = RunRecord(
            command=command,
            settings=dict(settings),
            started_as=line if line.isprintable() else None,
        )
        write_document(record_path, record)
        yield folder


@contextmanager
def locked_folder(folder: Path) -> Iterator[bool]:
    """Hold a folder, which is made if need be, for the length of the block.

    Yields:
        Whether nobody else can hold it meanwhile: False on a file system that knows no locks.

    Raises:
        InvalidInput: another process holds it.
        InvalidFile: it cannot be written.
    """
    path = folder / LOCK_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InvalidFile(f"{folder}: cannot be written ({error.strerror})") from None
    _held.add(descriptor)
    try:
        yield _is_locked(descriptor, folder)
    finally:
        # Not in a forked process.
        if descriptor in _held:
            _held.remove(descriptor)
            os.close(descriptor)


def _is_locked(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 200).decode(errors="replace")
        holder = f" ({text})" if text else ""
        raise InvalidInput(
            f"{folder}: another process writes there{holder}; wait for it, or choose another --out"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise InvalidFile(f"{folder}: cannot be written ({error.strerror})") from None
        return False
    # Whose lock it is matters to error messages alone.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode())
    return True


def _check_usable(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file; give a folder with --out")
    files = list(folder.iterdir()) if folder.exists() else []
    foreign = any(file.name != LOCK_NAME and not is_temporary(file) for file in files)
    if foreign and not (folder / RECORD_NAME).exists():
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
    return [_said(inner) for inner in value] or None if isinstance(value, list) else value


def _kept_anything(folder: Path) -> bool:
    """Return whether there is more than a run's record, options, report and events."""
    passing = {RECORD_NAME, OPTIONS_NAME, REPORT_NAME, CHANGES_NAME, LOCK_NAME}
    return any(
        file.name not in passing and not file.match(_EVENTS) and not is_temporary(file)
        for file in folder.iterdir()
    )
