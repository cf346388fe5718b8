"""What is left behind: by a block of a program, or by a program that was killed."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults import workers_of_this_process
from benchmarks.process_facts import children_of
from drlpp.io.documents import is_temporary
from drlpp.io.folder_lock import LOCK_NAME

_TORCHS = "torchinductor*"
"""Torch's cache is there for everyone."""


@contextmanager
def everything_gone() -> Iterator[list[str]]:
    """A list that is filled, behind the block, with what the block has left behind."""
    left: list[str] = []
    before = _possessions()
    yield left
    left += sorted(_possessions() - before)


def _possessions() -> set[str]:
    """Workers, temporary folders, shared memory, and connections of this process."""
    workers = {f"worker process {process}" for process in workers_of_this_process()}
    folders = Path(tempfile.gettempdir()).glob("drlpp-session-*")
    shared = Path("/dev/shm").glob("*")
    sockets = sum("socket:" in _target(link) for link in Path("/proc/self/fd").iterdir())
    kept = {f"{number} sockets" for number in range(sockets)}
    return workers | {str(path) for path in (*folders, *shared)} | kept


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def unfinished_in(folder: Path) -> list[str]:
    """Files of killed runs that one which went on in their folder should have removed."""
    return [
        f"{folder.name}/{path.name}"
        for path in sorted(folder.iterdir())
        if is_temporary(path) or path.name == LOCK_NAME
    ]


def descendants(process: int) -> set[int]:
    """All processes that descend from one."""
    found: set[int] = set()
    waiting = [process]
    while waiting:
        try:
            below = children_of(waiting.pop())
        except OSError:
            continue
        found.update(below)
        waiting += below
    return found


def wait_until_gone(family: set[int], temporary: Path, seconds: float = 30) -> list[str]:
    """Wait for processes, and all files in a folder, to go; what is left after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        left = [f"process {process}" for process in family if _runs(process)]
        left += [p.name for p in temporary.iterdir() if not p.match(_TORCHS)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _runs(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
