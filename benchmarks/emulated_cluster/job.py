"""A command under ``torchrun`` on every host of an emulated cluster."""

from __future__ import annotations

import random
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drlpp.errors import RunFailure, TrialTimeout, WorkerLost

_POLL_SECONDS = 0.05
GRACE_SECONDS = 5.0
_FAILED_RANK = re.compile(r"Root Cause.*?rank\s*: (\d+) ", re.DOTALL)
"""In what torchrun reports when a process of its has failed."""


@dataclass(frozen=True)
class Place:
    """Where a host's processes run.

    Attributes:
        host: its name.
        address: its own.
        prefix: of every command that runs there.
        groups: the file that a process of each accelerator writes itself into; none without quotas.
        accelerators: how many processes.
        network: the file of its network namespace; None if it has none of its own.
    """

    host: str
    address: str
    prefix: tuple[str, ...]
    groups: tuple[Path, ...]
    accelerators: int
    network: Path | None = None


class Job:
    """One run of a command, a process for each accelerator.

    Args:
        command: with its arguments.
        places: of every host.
        environment: of every process.
        folder: for what the processes print: ``rank-N.log`` and, of torchrun on the hosts,
            ``torchrun-N.log``.
        name: of the cluster; hosts of another one are refused at the rendezvous.
    """

    def __init__(
        self,
        command: Sequence[str],
        places: Sequence[Place],
        environment: Mapping[str, str],
        folder: Path,
        name: str,
    ) -> None:
        self._places = places
        self._folder = folder
        self._printed = Printed(folder / "rank-0.log")
        environment = {**environment, "OMP_NUM_THREADS": "1"}
        self._launchers: list[subprocess.Popen[bytes]] = []
        rendezvous = (f"{places[0].address}:{free_port()}", name)
        for number, place in enumerate(places):
            script = _script_of(command, place, folder / f"command-{number}.sh")
            launcher = [
                *place.prefix,
                *_torchrun(places, number, *rendezvous, folder),
                "bash",
                str(script),
            ]
            self._launchers.append(start_program(launcher, self._launcher_log(number), environment))

    @property
    def output(self) -> str:
        """What rank 0 has printed so far."""
        return self._printed.text

    def wait(
        self, timeout_seconds: float | None = None, on_output: Callable[[str], object] | None = None
    ) -> str:
        """Wait until the command has ended everywhere.

        Args:
            timeout_seconds: after which it counts as hung; waits for ever by default.
            on_output: called with what rank 0 prints, as it does.

        Returns:
            What rank 0 has printed.

        Raises:
            WorkerLost: the command failed on a host.
            TrialTimeout: it did not end in time.
        """
        begin = time.monotonic()
        while True:
            codes = [launcher.poll() for launcher in self._launchers]
            if on_output is not None:
                self._printed.pass_on(on_output)
            if any(codes):
                raise self._failure()
            if all(code == 0 for code in codes):
                return self.output
            if timeout_seconds is not None and time.monotonic() - begin > timeout_seconds:
                raise TrialTimeout(
                    f"the command has not ended within {timeout_seconds:g} s; the last line of "
                    f"rank 0: {last_words(self.output) or 'none'}"
                )
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Ask the launchers that still run to end their processes, and wait a few seconds."""
        end_programs(self._launchers, GRACE_SECONDS)

    def _launcher_log(self, number: int) -> Path:
        return self._folder / f"torchrun-{number}.log"

    def _failure(self) -> RunFailure:
        """Return the failure, with the last words of the lowest rank that failed and had any.

        Processes that keep workers end without a word as soon as the first one has failed.
        """
        give_up = time.monotonic() + GRACE_SECONDS
        while self._launchers[0].poll() is None and time.monotonic() < give_up:
            time.sleep(_POLL_SECONDS)
        failed = [number for number, one in enumerate(self._launchers) if one.poll()]
        said = [self._last_words_on(number) for number in failed]
        who, words = next(((who, words) for who, words in said if words), said[0])
        told = f"ended with: {words}" if words else "has printed nothing"
        return WorkerLost(f"the command failed: {who} {told}")

    def _last_words_on(self, number: int) -> tuple[str, str]:
        """Return who failed on a host, and the last line that it printed."""
        host = self._places[number].host
        launcher = text_of(self._launcher_log(number))
        if cause := _FAILED_RANK.search(launcher):
            log = self._folder / f"rank-{cause.group(1)}.log"
            return f"rank {cause.group(1)} on {host}", last_words(text_of(log))
        return f"torchrun on {host}", last_words(launcher)


def free_port() -> int:
    """Return a port that is free on all addresses here: dilated clusters share them.

    Not one that the system gives away, and may give to somebody else before it is used.
    """
    while True:
        with suppress(OSError), socket.create_server(("", random.randrange(20_000, 32_000))) as own:
            return int(own.getsockname()[1])


def _torchrun(
    places: Sequence[Place], number: int, endpoint: str, name: str, folder: Path
) -> list[str]:
    place = places[number]
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(places)), "--node-rank", str(number)),
        *("--nproc-per-node", str(place.accelerators)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint),
        # All hosts have this machine's name, by which torchrun would look for the first.
        *("--rdzv-conf", f"is_host={number == 0}", "--rdzv-id", name),
        *("--local-addr", place.address, "--log-dir", str(folder), "--no-python"),
    ]


def _script_of(command: Sequence[str], place: Place, path: Path) -> Path:
    """Write a shell script that takes its place, then becomes the command.

    The accelerator's control group has to be entered before the command starts any thread. It is a
    file because torchrun replaces what it takes for macros in arguments.
    """
    lines = [f'exec > {shlex.quote(str(path.parent))}/rank-"$RANK".log 2>&1']
    if place.groups:
        lines += [
            f"groups=({shlex.join(map(str, place.groups))})",
            'echo $$ > "${groups[$LOCAL_RANK]}" || exit 1',
        ]
    path.write_text("\n".join((*lines, f"exec {shlex.join(command)}", "")))
    return path


class Printed:
    """What a command prints into a file, which may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed_on = 0

    @property
    def text(self) -> str:
        """All of it so far."""
        return text_of(self._path)

    def pass_on(self, on_output: Callable[[str], object]) -> None:
        """Call with what is new since the last time, if anything is."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._passed_on)
                new = file.read()
            self._passed_on += len(new)
            if new:
                on_output(new.decode(errors="replace"))


def last_words(text: str) -> str:
    """Return the last line that says anything."""
    # Rules and the frames of boxes say nothing.
    lines = [line.strip(" │") for line in text.splitlines() if any(map(str.isalnum, line))]
    return lines[-1] if lines else ""


def text_of(path: Path) -> str:
    """Return what a file has in it; nothing if there is none yet."""
    return path.read_text(errors="replace") if path.exists() else ""


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
