"""What Ray's own processes take of a machine while it measures, and while it does not."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


class RayLoad:
    """The part of a core that all of Ray's processes on this machine take, by what is going on.

    The actors that keep workers are among them, the workers are not, and neither is the program.
    What a process takes before it ends in the middle is left out.

    Attributes:
        processes: how many there were last.
    """

    def __init__(self) -> None:
        self.processes = 0
        self._used: defaultdict[str, float] = defaultdict(float)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @property
    def shares(self) -> dict[str, float]:
        """Of a core, by what was going on."""
        return {what: self._used[what] / seconds for what, seconds in self._seconds.items()}

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Count what they take in the block."""
        before, begin = _processor_seconds_of_ray(), time.perf_counter()
        yield
        seconds, after = time.perf_counter() - begin, _processor_seconds_of_ray()
        self.processes = len(after)
        self._seconds[what] += seconds
        self._used[what] += sum(used - before.get(process, 0.0) for process, used in after.items())


def _processor_seconds_of_ray() -> dict[psutil.Process, float]:
    import ray

    # Of its programs, of its modules (`-m`), and what it calls processes that run actors.
    begins = (str(Path(ray.__file__).parent), "ray.", "ray::")
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(p.startswith(begins) or p.endswith("/bin/ray") for p in process.cmdline()):
                times = process.cpu_times()
                found[process] = times.user + times.system
    return found
