"""Processes: what they hold, which there are, whether they are gone, where their files go."""

from __future__ import annotations

import multiprocessing.util
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_TORCHS = ("torchinductor*", "*/_remote_module_non_scriptable.py")
"""Torch's cache is there for everyone; the other is what torch 2.11 makes when it is imported."""


@dataclass(frozen=True)
class ProcessFacts:
    """A process at one moment.

    Attributes:
        memory_bytes: its resident set.
        private_bytes: the part of it that the process has written. A process that was forked from
            another shares memory with it until one of them writes there, which may be its first
            garbage collection: this part may grow when the whole does not.
        open_files: files and sockets.
        threads: how many.
        processor_seconds: that it has used.
    """

    memory_bytes: int
    private_bytes: int
    open_files: int
    threads: int
    processor_seconds: float


def facts_of(process_id: int) -> ProcessFacts:
    """Return what a running process holds.

    Raises:
        psutil.Error: it has ended, or the system does not tell.
    """
    process = psutil.Process(process_id)
    # Exact, where the kernel's own sum (memory_info) may lag behind.
    maps = process.memory_maps()
    times = process.cpu_times()
    return ProcessFacts(
        memory_bytes=sum(one.rss for one in maps),
        private_bytes=sum(one.private_dirty for one in maps),
        open_files=process.num_fds(),
        threads=process.num_threads(),
        processor_seconds=times.user + times.system,
    )


def children_of(process_id: int) -> list[int]:
    """Return processes that it started and that run, or that it has not waited for."""
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(process_id).children()]
    return []


def workers_of(controller: int) -> list[int]:
    """Return the worker processes of all its sessions: children of the server that forks them."""
    return [worker for child in children_of(controller) for worker in children_of(child)]


def descendants(process_id: int) -> set[int]:
    """Return all processes that descend from one."""
    with suppress(psutil.NoSuchProcess):
        return {child.pid for child in psutil.Process(process_id).children(recursive=True)}
    return set()


def wait_until_gone(family: Iterable[int], temporary: Path, seconds: float = 30) -> list[str]:
    """Wait for processes, and all files in a folder, to go; what is left after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        left = [f"process {process}" for process in family if _runs(process)]
        found = [path.relative_to(temporary) for of in _TORCHS for path in temporary.glob(of)]
        torchs = {temporary / path.parts[0] for path in found}
        left += [path.name for path in temporary.iterdir() if path not in torchs]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _runs(process_id: int) -> bool:
    # The first thread of a killed process may be gone while others still hold its locks.
    with suppress(psutil.NoSuchProcess, OSError):
        zombie = psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE
        return not zombie or len([*Path(f"/proc/{process_id}/task").iterdir()]) > 1
    return False


def process_of(ancestor: int, name: str) -> int:
    """Return the process below another whose command line has that name in it.

    Raises:
        RuntimeError: there is none.
    """
    for child in children_of(ancestor):
        with suppress(OSError):
            if name in Path(f"/proc/{child}/cmdline").read_text():
                return child
        with suppress(RuntimeError):
            return process_of(child, name)
    raise RuntimeError(f"process {ancestor} has no descendant {name}")


@contextmanager
def temporary_files_in(folder: str | Path) -> Iterator[None]:
    """Put every temporary file of this process there, except for multiprocessing's socket."""
    # Its folder outlives the block.
    multiprocessing.util.get_temp_dir()
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def limit_memory(process: int, more: int = 2**25) -> None:
    """Let a process hold the data that it has, and so many bytes more."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + more
    resource.prlimit(process, resource.RLIMIT_DATA, (limit, limit))
