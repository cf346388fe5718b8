"""What hosts cost Ray's head and the controller: nodes of Ray on addresses of this machine."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from pandas import DataFrame
from rich.filesize import decimal

from benchmarks.emulated_cluster.job import free_port
from benchmarks.emulated_cluster.ray_hosts import ALONE
from benchmarks.scale.extrapolation import extrapolated_to, table_of_columns
from benchmarks.scale.workers import chain
from drlpp.io.formatting import seconds_text
from drlpp.runtime import ClusterSession, TimeLimits
from drlpp.runtime.hosts.on_ray.start import RayNodeProcess
from drlpp.runtime.ipc.commands import Release

SIZES = (1, 4, 8)
BEYOND = (32, 128)
"""With eight workers each, 256 and 1,024 workers."""

_START_SECONDS = 120.0
_IDLE_SECONDS = 20.0
_COMMANDS = 20
_FILE_BYTES = 64 << 20
_STORE_BYTES = 100_000_000
_PATIENT = TimeLimits(host_silence_seconds=40, lease_seconds=60, gathering_seconds=60)


@dataclass(frozen=True)
class Row:
    """A session with a worker on each of so many hosts.

    Attributes:
        hosts: how many, the head's among them.
        session_seconds: until all workers know the model.
        head_bytes: memory of Ray's processes on the head's host, what others share divided.
        node_bytes: the median of the other hosts'; 0 if there are none.
        head_share: of a core, that the head's take in an idle session.
        controller_share: of a core, that the controller takes then, which asks every host for news.
        command_seconds: from a command to every worker until all have answered, the median.
        published_bytes_per_second: of a file that the controller gives to all hosts but its own; 0
            if there are none.
    """

    hosts: int
    session_seconds: float
    head_bytes: float
    node_bytes: float
    head_share: float
    controller_share: float
    command_seconds: float
    published_bytes_per_second: float


def measure(sizes: Sequence[int]) -> list[Row]:
    """Measure clusters that grow."""
    import ray

    rows = []
    with _nodes() as (started, start, address):
        try:
            for size in sizes:
                while len(started) < size:
                    start()
                rows.append(_measured(started, address))
        finally:
            # Before its head ends, or Ray would end this process.
            ray.shutdown()
    return rows


def _measured(nodes: Sequence[RayNodeProcess], address: str) -> Row:
    begin = time.perf_counter()
    with ClusterSession(
        chain(), len(nodes), device="cpu", cluster=address, time_limits=_PATIENT
    ) as session:
        group = session.worker_group
        group.prepare()
        session_seconds = time.perf_counter() - begin
        of_ray = [_processes_of_ray(node) for node in nodes]
        memory = [sum(p.memory_full_info().pss for p in processes) for processes in of_ray]
        begin, used, head = time.perf_counter(), time.process_time(), _used(of_ray[0])
        time.sleep(_IDLE_SECONDS)
        seconds = time.perf_counter() - begin
        controller_share = (time.process_time() - used) / seconds
        head_share = (_used(of_ray[0]) - head) / seconds
        release = dict.fromkeys(range(len(nodes)), Release())
        times = []
        for _ in range(_COMMANDS):
            begin = time.perf_counter()
            group.command(release)
            times.append(time.perf_counter() - begin)
        (session.folder / "large").write_bytes(os.urandom(_FILE_BYTES))
        begin = time.perf_counter()
        group.files.publish("large")
        # Answered after the last chunk has been written.
        group.command(release)
        publishing = time.perf_counter() - begin
    others = len(nodes) - 1
    return Row(
        hosts=len(nodes),
        session_seconds=session_seconds,
        head_bytes=memory[0],
        node_bytes=statistics.median(memory[1:]) if others else 0,
        head_share=head_share,
        controller_share=controller_share,
        command_seconds=statistics.median(times),
        published_bytes_per_second=others * _FILE_BYTES / publishing,
    )


@contextmanager
def _nodes() -> Iterator[tuple[list[RayNodeProcess], Callable[[], None], str]]:
    """Lend nodes of Ray: those that were started, what starts another, and the head's address."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    network = f"127.{random.randrange(64, 250)}.{random.randrange(1, 250)}"
    port = free_port()
    started: list[RayNodeProcess] = []
    os.environ.update(ALONE)

    def start() -> None:
        number = len(started)
        options = ["--num-cpus", "1", "--object-store-memory", str(_STORE_BYTES)]
        options += ["--include-log-monitor=false"]
        options += ["--temp-dir", str(folder)] if number == 0 else []
        started.append(
            RayNodeProcess(
                folder / f"node-{number}.log",
                f"{network}.{number + 1}",
                port,
                f"{network}.1" if number else None,
                options,
            )
        )
        started[-1].wait_until_started(_START_SECONDS)

    try:
        yield started, start, f"{network}.1:{port}"
    finally:
        for node in reversed(started):
            node.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _processes_of_ray(node: RayNodeProcess) -> list[psutil.Process]:
    """Return Ray's processes on a node: all but the actor that keeps workers, and what it began."""
    found = [psutil.Process(node.process.pid)]
    for process in found:
        found += [
            child for child in process.children() if "HostActor" not in " ".join(child.cmdline())
        ]
    return found


def _used(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


def extrapolated(rows: Sequence[Row], hosts: int) -> Row:
    """Return a row for more hosts: along the line through the two largest that were measured.

    What a host costs by itself, and how fast a file travels, stays.
    """
    same = ("node_bytes", "published_bytes_per_second")
    return extrapolated_to(rows, "hosts", hosts, same)


_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "session_seconds": ("a session begun, a worker on each", seconds_text),
    "head_bytes": ("memory of Ray on the head's host", lambda value: decimal(round(value))),
    "node_bytes": ("on another", lambda value: decimal(round(value)) if value else "–"),
    "head_share": ("of a core, Ray on the head's host", "{:.1%}".format),
    "controller_share": ("of a core, the controller", "{:.1%}".format),
    "command_seconds": ("a command to all, answered", seconds_text),
    "published_bytes_per_second": (
        "a file to all, together",
        lambda value: f"{decimal(round(value))}/s" if value else "–",
    ),
}


def table_of(rows: Sequence[Row]) -> DataFrame:
    """Return measured rows and extrapolated ones as text, a column for each."""
    beyond = [extrapolated(rows, hosts) for hosts in BEYOND]
    # It follows from the cores of this machine.
    return table_of_columns(rows, beyond, "hosts", _COLUMNS, ("session_seconds",))
