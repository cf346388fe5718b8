"""What Ray's own processes take of a machine while it measures, and while it does not."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_RAYS_TITLE = "ray::"
"""What Ray calls the processes of actors and of tasks, and those that wait for some."""


class RayLoad:
    """The part of a core that all of Ray's processes on this machine take, by what is going on.

    The actors that keep workers are among them, the workers are not, and neither is the program.
    They are those that run when this object is made.
    """

    def __init__(self) -> None:
        self._processes = _processes_of_ray()
        self._used: defaultdict[str, float] = defaultdict(float)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @property
    def processes(self) -> int:
        """How many there are."""
        return len(self._processes)

    @property
    def shares(self) -> dict[str, float]:
        """Of a core, by what was going on."""
        return {what: self._used[what] / seconds for what, seconds in self._seconds.items()}

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Count what they take in the block."""
        used, begin = self._processor_seconds(), time.perf_counter()
        yield
        self._seconds[what] += time.perf_counter() - begin
        self._used[what] += self._processor_seconds() - used

    def _processor_seconds(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return sum(one.user + one.system for one in times)


def _processes_of_ray() -> list[psutil.Process]:
    import ray

    installed = str(Path(ray.__file__).parent)
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if command and (command[0].startswith(_RAYS_TITLE) or installed in " ".join(command)):
                found.append(process)
    return found
