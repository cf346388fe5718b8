"""Programs on the hosts of an emulated cluster: started, read, ended by their process ids."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from drlpp.errors import TrialTimeout, WorkerLost

POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0


class HostProgram:
    """A command that runs on a host.

    Args:
        command: with its arguments.
        environment: of it.
        folder: for what it prints.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._log = folder / f"program-{time.monotonic_ns()}.log"
        self._passed_on = 0
        self._process = start_program(command, self._log, environment)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    def wait(
        self, timeout_seconds: float | None = None, on_output: Callable[[str], object] | None = None
    ) -> str:
        """Wait until it has ended.

        Args:
            timeout_seconds: that it may take.
            on_output: called with what it prints, as it does.

        Returns:
            What it has printed, errors included.

        Raises:
            WorkerLost: it failed.
            TrialTimeout: it did not end in time.
        """
        begin = time.monotonic()
        while True:
            code = self._process.poll()
            if on_output:
                self._pass_on(on_output)
            if code == 0:
                return self.output
            if code is not None:
                words = last_words(self.output) or "nothing"
                raise WorkerLost(f"the command failed with exit code {code}; it said: {words}")
            if timeout_seconds is not None and time.monotonic() - begin > timeout_seconds:
                raise TrialTimeout(
                    f"the command has not ended within {timeout_seconds:g} s; its last line: "
                    f"{last_words(self.output) or 'none'}"
                )
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Ask it to end, and kill it after some seconds."""
        end_programs([self._process], _GRACE_SECONDS)

    def _pass_on(self, on_output: Callable[[str], object]) -> None:
        with self._log.open("rb") as file:
            file.seek(self._passed_on)
            new = file.read()
        self._passed_on += len(new)
        if new:
            on_output(new.decode(errors="replace"))


def free_port() -> int:
    """Return a port that is free on all addresses here.

    Not one that the system gives away, and may give to somebody else before it is used.
    """
    while True:
        with suppress(OSError), socket.create_server(("", random.randrange(20_000, 32_000))) as own:
            return int(own.getsockname()[1])


def last_words(text: str) -> str:
    """Return the last line that says anything."""
    # Rules and the frames of boxes say nothing.
    lines = [line.strip(" │") for line in text.splitlines() if any(map(str.isalnum, line))]
    return lines[-1] if lines else ""


def start_program(
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


def end_programs(processes: Iterable[subprocess.Popen[bytes]], seconds: float) -> None:
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
