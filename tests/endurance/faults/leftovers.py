"""What is left behind: by a block of a program, or by a run that was killed."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drlpp.io.documents import is_temporary
from drlpp.io.folder_lock import LOCK_NAME
from tests.support.processes import workers_of


@contextmanager
def everything_gone() -> Iterator[list[str]]:
    """Yield a list that is filled, after the block, with what the block has left behind."""
    left: list[str] = []
    before = _possessions()
    yield left
    left += sorted(_possessions() - before)


def _possessions() -> set[str]:
    """Return the workers, temporary folders, shared memory and connections of this process."""
    workers = {f"worker process {process}" for process in workers_of(os.getpid())}
    folders = Path(tempfile.gettempdir()).glob("drlpp-session-*")
    shared = {path for path in Path("/dev/shm").glob("*") if not _is_of_another_program(path)}
    sockets = sum("socket:" in _target(link) for link in Path("/proc/self/fd").iterdir())
    kept = {f"{number} sockets" for number in range(sockets)}
    return workers | {str(path) for path in (*folders, *shared)} | kept


def _is_of_another_program(shared: Path) -> bool:
    """Tell whether shared memory is a semaphore of loky's, named after another process."""
    semaphore = re.match(r"sem\.loky-(\d+)-", shared.name)
    return semaphore is not None and int(semaphore[1]) != os.getpid()


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def unfinished_in(folder: Path) -> list[str]:
    """Return files of killed runs that a later run in their folder should have removed."""
    return [
        f"{folder.name}/{path.name}"
        for path in sorted(folder.iterdir())
        if is_temporary(path) or path.name == LOCK_NAME
    ]
