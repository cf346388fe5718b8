"""Other programs as children: what they print goes into a file; they are ended by their ids."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that reads nothing, by default in this process's environment.

    Ctrl-C does not reach it: it is for whoever started it.
    """
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def end(processes: Iterable[subprocess.Popen[bytes]], seconds: float) -> None:
    """Ask programs to end, and kill those that have not in some seconds."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    give_up = time.monotonic() + seconds
    for process in running:
        try:
            process.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
