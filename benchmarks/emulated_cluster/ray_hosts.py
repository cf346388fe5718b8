"""Ray on every host of an emulated cluster, with workers under the quotas of their accelerators."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.emulated_cluster.names import MARK
from benchmarks.emulated_cluster.programs import (
    POLL_SECONDS,
    HostProgram,
    end_programs,
    free_port,
    last_words,
    start_program,
)
from drlpp.errors import RunFailure

_START_SECONDS = 120.0
_STARTED = "Ray runtime started"
_ENDING_SECONDS = 20.0
_STORE_BYTES = 200_000_000
ALONE = {
    # Whatever this user has in ~/.ray: a token file would be demanded of everybody, and such hosts
    # are reached from nowhere else.
    "RAY_AUTH_MODE": "disabled",
    # Processes that nobody needs.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
"""The environment of Ray on hosts that are all this machine."""
_WORKER = re.compile(r"drlpp-w(\d+)")
"""What the processes of workers are called."""


@dataclass(frozen=True)
class Place:
    """Where a host's processes run.

    Attributes:
        host: its name.
        address: its own.
        prefix: of every command that runs there.
        groups: the file that a process of each accelerator is written into; none without quotas.
        accelerators: how many it has.
        network: the file of its network namespace.
    """

    host: str
    address: str
    prefix: tuple[str, ...]
    groups: tuple[Path, ...]
    accelerators: int
    network: Path


class RayNodeProcess:
    """A node of a Ray cluster, started as a child and ended by its process id.

    ``ray stop`` looks for processes by their names on the whole machine, and ends those of others.

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
        self.process = start_program(command, log, environment)

    def wait_until_started(self, seconds: float) -> None:
        """Wait until it is part of the cluster.

        Raises:
            RunFailure: it ended, or it takes longer than that.
        """
        give_up = time.monotonic() + seconds
        while _STARTED not in (printed := self._log.read_text(errors="replace")):
            if self.process.poll() is not None:
                words = last_words(printed) or "without a word"
                raise RunFailure(f"Ray at {self.address} ended: {words}")
            if time.monotonic() > give_up:
                raise RunFailure(f"Ray at {self.address} has not begun within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        end_programs([self.process], _ENDING_SECONDS)


class RayHosts:
    """The nodes of a Ray cluster, one on each host, with as many CPUs as it has accelerators.

    Workers are put under the quotas of their accelerators as soon as they are seen: those of a
    host in the order of their numbers. Ray's own processes have none.

    Args:
        places: of every host.
        environment: of every process.
        folder: for what they print, and Ray's own files; a short name.
        name: of the emulated cluster.
    """

    def __init__(
        self, places: Sequence[Place], environment: Mapping[str, str], folder: Path, name: str
    ) -> None:
        self._places = places
        self._environment = {**environment, **ALONE}
        self._folder = folder
        self._name = name
        self._port = free_port()
        self._stopped = threading.Event()
        self.nodes: dict[str, RayNodeProcess] = {}
        try:
            for number in range(len(places)):
                self._start_node(number)
        except BaseException:
            self.stop()
            raise
        threading.Thread(target=self._hold_workers, daemon=True).start()

    def _start_node(self, number: int) -> None:
        place = self._places[number]
        options = ["--num-cpus", str(place.accelerators), "--node-name", place.host]
        options += ["--object-store-memory", str(_STORE_BYTES), "--include-log-monitor=false"]
        if number == 0:
            options += ["--temp-dir", str(self._folder / "ray")]
        node = RayNodeProcess(
            self._folder / f"ray-{number}.log",
            place.address,
            self._port,
            None if number == 0 else self._places[0].address,
            options,
            self._environment,
            place.prefix,
        )
        self.nodes[place.host] = node
        node.wait_until_started(_START_SECONDS)

    def start(self, command: Sequence[str]) -> HostProgram:
        """Start a command on the first host; ``--cluster auto`` finds the others."""
        address = f"{self._places[0].address}:{self._port}"
        environment = {**self._environment, "RAY_ADDRESS": address}
        return HostProgram([*self._places[0].prefix, *command], environment, self._folder)

    def stop(self) -> None:
        """End Ray on all hosts."""
        self._stopped.set()
        for node in reversed(self.nodes.values()):
            node.stop()

    def _hold_workers(self) -> None:
        """Put new workers under the quotas of their accelerators."""
        if not any(place.groups for place in self._places):
            return
        host_of: dict[int, tuple[int, int] | None] = {}
        held: dict[int, Path] = {}
        while not self._stopped.wait(POLL_SECONDS):
            now = dict(_workers_by_name())
            for process in set(host_of) - set(now):
                del host_of[process]
            for process, number in now.items():
                if process not in host_of:
                    host = self._host_of(process)
                    host_of[process] = None if host is None else (host, number)
            for host, place in enumerate(self._places):
                mine = sorted(
                    (found[1], process)
                    for process, found in host_of.items()
                    if found is not None and found[0] == host
                )
                for group, (_, process) in zip(place.groups, mine, strict=False):
                    if held.get(process) != group:
                        with suppress(OSError):
                            group.write_text(str(process))
                            held[process] = group

    def _host_of(self, process: int) -> int | None:
        """Return the host of a process of this cluster; None for one of another."""
        with suppress(OSError):
            if f"{MARK}={self._name}".encode() in Path(f"/proc/{process}/environ").read_bytes():
                network = os.stat(f"/proc/{process}/ns/net").st_ino
                for host, place in enumerate(self._places):
                    if place.network.stat().st_ino == network:
                        return host
        return None


def _workers_by_name() -> list[tuple[int, int]]:
    """Return the processes of workers on this machine, with their numbers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if match := _WORKER.fullmatch((folder / "comm").read_text().strip()):
                found.append((int(folder.name), int(match.group(1))))
    return found
