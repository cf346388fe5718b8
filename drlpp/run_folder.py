"""The output folder of a run: claimed once, resumed by the same run only.

A run that has not kept anything yet, because it failed before its first checkpoint for instance,
is no reason to keep the folder: the same command may begin anew in it, with other settings too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from drlpp.errors import InvalidInput
from drlpp.files import Document, read_document, write_document

_RECORD, _EVENTS = "run.json", "events.out.tfevents.*"


class RunRecord(Document):
    """What a folder holds: the command that filled it, and the settings that decide its result."""

    kind: ClassVar[str] = "run"

    command: str
    settings: dict[str, Any]


def open_run_folder(
    folder: Path,
    command: str,
    settings: Mapping[str, Any],
    *,
    resume: bool,
    restarted: bool = False,
) -> Path:
    """Claim ``folder`` for a run, or go on with the run that it holds.

    A run of the same command that has kept nothing but TensorBoard's events is begun anew.

    Args:
        folder: for everything that the run writes.
        command: that was given.
        settings: that decide the run's result.
        resume: go on with the run in the folder.
        restarted: this is another attempt at the same run, which may or may not have begun.

    Raises:
        InvalidInput: the folder holds something else, or a run with other settings.
    """
    record_path = folder / _RECORD
    resume = resume or (restarted and record_path.exists())
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file; give a folder with --out")
    if not record_path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InvalidInput(
                f"{folder} is not empty and holds no run of drlpp; give another folder with --out"
            )
        if resume:
            raise InvalidInput(f"{folder} holds no run to resume; leave out --resume to begin one")
        write_document(record_path, RunRecord(command=command, settings=dict(settings)))
        return folder
    record = read_document(record_path, RunRecord)
    if record.command == command and not _kept_anything(folder):
        for events in folder.glob(_EVENTS):
            events.unlink()
        write_document(record_path, RunRecord(command=command, settings=dict(settings)))
        return folder
    if not resume:
        raise InvalidInput(
            f"{folder} holds another run ({record.command}); go on with it by --resume, or give "
            "another folder with --out"
        )
    if record.command != command:
        raise InvalidInput(
            f"{folder} holds a run of {record.command}, which {command} cannot resume"
        )
    for key in {**record.settings, **settings}:
        if record.settings.get(key) != settings.get(key):
            raise InvalidInput(
                f"{folder} holds a run with {key} = {record.settings.get(key)!r}; it cannot be "
                f"resumed with {settings.get(key)!r}"
            )
    return folder


def _kept_anything(folder: Path) -> bool:
    """Whether there is more than the record of the run and TensorBoard's events."""
    return any(file.name != _RECORD and not file.match(_EVENTS) for file in folder.iterdir())
