"""Ray on this machine, started as a child and ended by its process id.

``ray stop`` looks for processes by their names on the whole machine, and ends those of others too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.emulated_cluster import child_process
from drlpp.errors import RunFailure

_STARTED = "Ray runtime started"
_POLL_SECONDS = 0.1
_ENDING_SECONDS = 20.0


class RayNodeProcess:
    """A node of a Ray cluster, for as long as this object is not stopped.

    Args:
        log: the file for what it prints.
        address: of this machine, where the others reach it.
        port: of the cluster's head.
        head: address of the machine with the head; None if this is it.
        options: further options of ``ray start``.
        environment: of its processes, and so of the workers; this process's by default.
        prefix: of the command, such as one that enters a network namespace.
    """

    def __init__(
        self,
        log: Path,
        address: str,
        port: int,
        head: str | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.address = address
        self._log = log
        where = (
            ("--head", "--port", str(port), "--include-dashboard=false")
            if head is None
            else ("--address", f"{head}:{port}")
        )
        command = [
            *prefix,
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *where),
            *("--node-ip-address", address, "--disable-usage-stats", *options),
        ]
        self.process = child_process.start(command, log, environment)

    def wait_until_started(self, seconds: float) -> None:
        """Wait until it is part of the cluster.

        Raises:
            RunFailure: it ended, or it takes longer than that.
        """
        give_up = time.monotonic() + seconds
        while _STARTED not in self._log.read_text(errors="replace"):
            if self.process.poll() is not None:
                raise RunFailure(f"Ray at {self.address} ended: {self._last_line()}")
            if time.monotonic() > give_up:
                raise RunFailure(f"Ray at {self.address} has not begun within {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        child_process.end([self.process], _ENDING_SECONDS)

    def _last_line(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "without a word")
