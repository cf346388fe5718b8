"""Ray clusters on this machine: nodes at addresses of the loopback device, ended by process id."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.emulated_cluster.names import MARK, end_processes, marked_processes, new_name
from benchmarks.emulated_cluster.programs import free_port
from benchmarks.emulated_cluster.ray_hosts import ALONE, RayNodeProcess
from drlpp.runtime import TimeLimits
from drlpp.runtime.session import session as session_module
from drlpp.runtime.session.worker_group import WorkerGroup
from tests.support.processes import descendants, process_of

START_SECONDS = 120.0
PATIENT = TimeLimits(host_silence_seconds=40, gathering_seconds=60)
"""For tests that are not of these limits, on a machine that is busy with others."""


class RayCluster:
    """The nodes of a cluster, the first with its head.

    Args:
        cpus: of every node.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self.name = new_name()
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))
        self.environment = {
            **os.environ,
            **ALONE,
            MARK: self.name,
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
        }
        # Other clusters of this machine have others.
        self._network = f"127.{random.randrange(64, 250)}.{random.randrange(1, 250)}"
        self._cpus = list(cpus)
        self._port = free_port()
        self.nodes: list[RayNodeProcess] = []

    @property
    def addresses(self) -> list[str]:
        """Of all nodes."""
        return [f"{self._network}.{number + 1}" for number in range(len(self._cpus))]

    @property
    def address(self) -> str:
        """What users give for --cluster."""
        return f"{self.addresses[0]}:{self._port}"

    def start(self) -> None:
        """Start all nodes."""
        for number in range(len(self.addresses)):
            self.nodes.append(self._started(number))

    def join(self, cpus: int) -> None:
        """Start another node."""
        self._cpus.append(cpus)
        self.nodes.append(self._started(len(self.nodes)))

    def _started(self, number: int) -> RayNodeProcess:
        options = ["--num-cpus", str(self._cpus[number]), "--object-store-memory", "100000000"]
        options += ["--include-log-monitor=false"]
        if number == 0:
            # Nobody asks it for more nodes.
            options += ["--temp-dir", str(self.folder), "--no-monitor"]
        node = RayNodeProcess(
            self.folder / f"node-{number}.log",
            self.addresses[number],
            self._port,
            None if number == 0 else self.addresses[0],
            options,
            self.environment,
        )
        try:
            node.wait_until_started(START_SECONDS)
        except BaseException:
            node.stop()
            raise
        return node

    def process(self, number: int, name: str) -> int:
        """The process of a node whose command line has that name in it: raylet, gcs_server."""
        return process_of(self.nodes[number].process.pid, name)

    def actor(self, number: int) -> int:
        """The process that keeps a session's workers on a node."""
        return self.process(number, "HostActor")

    def stop(self) -> None:
        """End all nodes; nothing is left."""
        for node in reversed(self.nodes):
            # One that a test has frozen ends no other way.
            for process in descendants(node.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)
            node.stop()
        end_processes(self.name)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert self.name not in marked_processes().values()


@contextmanager
def ray_cluster(cpus: Sequence[int] = (2, 2)) -> Iterator[RayCluster]:
    """Lend a cluster; this process leaves it at the end, if it has joined."""
    import ray

    cluster = RayCluster(cpus)
    before = {name: os.environ.get(name) for name in ALONE}
    os.environ.update(ALONE)
    try:
        cluster.start()
        yield cluster
    finally:
        # Before its head ends, or Ray would end this process.
        ray.shutdown()
        cluster.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


@contextmanager
def patience(limits: TimeLimits = PATIENT) -> Iterator[None]:
    """Let sessions of commands, which have no option for it, be as patient."""
    with mock.patch.object(session_module, "time_limits_of", return_value=limits):
        yield


def look_until_it_has_returned(
    patch: pytest.MonkeyPatch, expected: Callable[[], bool] = lambda: True
) -> None:
    """Let who looks for lost hosts wait until they are found, while they are expected to be."""
    take_back = WorkerGroup.take_back

    def is_missed(group: WorkerGroup) -> bool:
        return not all(group.of_worker[one].has_returned for one in group.given_up)

    def look(group: WorkerGroup) -> tuple[int, ...]:
        # Whoever looks for hosts learns by this which ones are missed.
        at_once = take_back(group)
        give_up = time.monotonic() + 120
        while expected() and is_missed(group) and time.monotonic() < give_up:
            time.sleep(0.05)
        return at_once + take_back(group)

    patch.setattr(WorkerGroup, "take_back", look)
