"""A program that is killed, and what is left behind: by it, or by a block of this one."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from drlpp.io.files import is_temporary
from tests.support.processes import descendants, wait_until_gone, workers_of

_ROOT = Path(__file__).parents[3]
_LONGEST_SECONDS = 300.0


def killed_at_random(
    command: Sequence[str],
    out: Path,
    is_ready: Callable[[str], bool],
    latest_seconds: float,
    chance: random.Random,
) -> list[str]:
    """Start a program and kill it up to so many seconds after it is ready.

    Args:
        command: of the program.
        out: what it prints and its temporary files get names like this.
        is_ready: returns whether it is, given what it has printed.
        latest_seconds: to wait after that.
        chance: says how long.

    Returns:
        What is left of it.

    Raises:
        RuntimeError: it ends before it is ready, or takes too long.
    """
    log = out.with_suffix(".log")
    temporary = out.with_name(f"{out.name}-temporary")
    temporary.mkdir()
    deadline = time.monotonic() + _LONGEST_SECONDS
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command, cwd=_ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        ) as program,
    ):
        try:
            while not is_ready(said := log.read_text(errors="replace")):
                if program.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{out.name} did not begin; it said: {said[-500:]}")
                time.sleep(0.02)
            time.sleep(chance.uniform(0, latest_seconds))
            family = descendants(program.pid)
        finally:
            program.kill()
    return wait_until_gone(family, temporary)


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
    # Searches on all cores, in other programs, have semaphores of loky's.
    shared = [path for path in Path("/dev/shm").glob("*") if not path.name.startswith("sem.loky-")]
    sockets = sum("socket:" in _target(link) for link in Path("/proc/self/fd").iterdir())
    kept = {f"{number} sockets" for number in range(sockets)}
    return workers | {str(path) for path in (*folders, *shared)} | kept


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def unfinished_in(folder: Path) -> list[str]:
    """Return files of killed runs that a later run in their folder should have removed."""
    return [f"{folder.name}/{path.name}" for path in sorted(folder.iterdir()) if is_temporary(path)]
