"""What workers cost the controller and the store: idle ones, started for real on this machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
import torch
from pandas import DataFrame
from rich.filesize import decimal
from torch import nn

from benchmarks.processes import workers_of
from benchmarks.scale.extrapolation import extrapolated_to, table_of_columns
from drlpp.io.formatting import seconds_text
from drlpp.models.task import Task
from drlpp.placement.placement import Placement, Stage
from drlpp.runtime import ClusterSession
from drlpp.runtime.hosts.local_host import LocalHost
from drlpp.runtime.ipc.commands import Release
from drlpp.schedule.method import Method

SIZES = (4, 16, 64)
BEYOND = (256, 1024)
_LAYERS = 64
_COMMANDS = 20
_IDLE_SECONDS = 10.0


@dataclass(frozen=True)
class Row:
    """A session with so many workers.

    Attributes:
        workers: how many.
        start_seconds: until all know the model.
        start_processor_seconds: of the controller, in this time.
        worker_start_seconds: of the processor, that a worker has used then, the mean.
        controller_bytes: its memory that no other process shares.
        worker_bytes: the same of a worker, the median.
        command_seconds: from a command to every worker until all have answered, the median.
        command_processor_seconds: of the controller for that, the mean.
        idle_share: of a core, that all workers together take while nobody asks for anything.
        deployed_seconds: to deploy a pipeline with a stage on every worker.
        connecting_seconds: of that, until the slowest is connected with all others.
        deployed_processor_seconds: of the controller for it.
        worker_deployed_seconds: of the processor, that a worker used for it, the mean.
        store_connections: that are open to the store then.
        worker_sockets: that the median worker has open then.
        controller_files: that the controller has open then.
    """

    workers: int
    start_seconds: float
    start_processor_seconds: float
    worker_start_seconds: float
    controller_bytes: float
    worker_bytes: float
    command_seconds: float
    command_processor_seconds: float
    idle_share: float
    deployed_seconds: float
    connecting_seconds: float
    deployed_processor_seconds: float
    worker_deployed_seconds: float
    store_connections: float
    worker_sockets: float
    controller_files: float


def measure(workers: int) -> Row:
    """Start workers, ask them, leave them alone, and deploy a pipeline on them."""
    controller = psutil.Process()
    begin, used = time.perf_counter(), time.process_time()
    with ClusterSession(chain(), workers, method=Method(), device="cpu") as session:
        group = session.worker_group
        group.prepare()
        start_seconds = time.perf_counter() - begin
        start_processor_seconds = time.process_time() - used
        processes = [psutil.Process(process) for process in session.process_ids]
        assert len(processes) == len(workers_of(os.getpid())) == workers
        worker_start_seconds = sum(map(_processor_seconds, processes)) / workers
        own = [process.memory_full_info().uss for process in processes]
        controller_bytes = controller.memory_full_info().uss

        release = dict.fromkeys(range(workers), Release())
        times, used = [], time.process_time()
        for _ in range(_COMMANDS):
            begin = time.perf_counter()
            group.command(release)
            times.append(time.perf_counter() - begin)
        command_processor_seconds = (time.process_time() - used) / _COMMANDS

        before = sum(map(_processor_seconds, processes))
        time.sleep(_IDLE_SECONDS)
        idle = sum(map(_processor_seconds, processes)) - before

        before, used = sum(map(_processor_seconds, processes)), time.process_time()
        deployment = session.deploy(straight(session, workers))
        deployed_processor_seconds = time.process_time() - used
        worker_deployed_seconds = (sum(map(_processor_seconds, processes)) - before) / workers
        (host,) = group.hosts.hosts
        assert isinstance(host, LocalHost)
        assert host.store is not None
        connections = [
            connection
            for connection in controller.net_connections("tcp")
            if connection.laddr.port == host.store.port and connection.raddr
        ]
        return Row(
            workers=workers,
            start_seconds=start_seconds,
            start_processor_seconds=start_processor_seconds,
            worker_start_seconds=worker_start_seconds,
            controller_bytes=controller_bytes,
            worker_bytes=statistics.median(own),
            command_seconds=statistics.median(times),
            command_processor_seconds=command_processor_seconds,
            idle_share=idle / _IDLE_SECONDS,
            deployed_seconds=deployment.times.total_seconds,
            connecting_seconds=deployment.times.connecting_seconds,
            deployed_processor_seconds=deployed_processor_seconds,
            worker_deployed_seconds=worker_deployed_seconds,
            store_connections=len(connections),
            worker_sockets=statistics.median(len(p.net_connections("tcp")) for p in processes),
            controller_files=controller.num_fds(),
        )


def chain() -> Task:
    """Return a small model that can be cut into as many stages as there are workers."""
    torch.manual_seed(0)
    layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(8, 8), nn.Tanh())]
    inputs, targets = torch.zeros(4, 8), torch.zeros(4, 8)
    return Task(nn.Sequential(*layers), (inputs,), targets, nn.functional.mse_loss)


def straight(session: ClusterSession, stages: int) -> Placement:
    """Return a placement with a stage on every worker, with as many operators each as possible."""
    count = len(session.graph)
    borders = [round(count * stage / stages) for stage in range(stages + 1)]
    return Placement(
        stages=tuple(
            Stage(operators=tuple(range(borders[k], borders[k + 1])), accelerators=(k,))
            for k in range(stages)
        )
    )


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def extrapolated(rows: Sequence[Row], workers: int) -> Row:
    """Return a row for more workers: along the line through the two largest that were measured.

    What a worker costs by itself stays.
    """
    same = ("worker_start_seconds", "worker_bytes")
    return extrapolated_to(rows, "workers", workers, same)


_OF_THIS_MACHINE = ("start_seconds", "deployed_seconds", "connecting_seconds")
"""Which follow from its cores: as many workers more have as many cores more elsewhere."""

_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "start_seconds": ("seconds to start", seconds_text),
    "worker_start_seconds": ("of the processor for it, a worker", seconds_text),
    "start_processor_seconds": ("the controller", seconds_text),
    "worker_bytes": ("memory of its own, a worker", lambda value: decimal(round(value))),
    "controller_bytes": ("the controller", lambda value: decimal(round(value))),
    "idle_share": ("of a core, all workers idle", "{:.1%}".format),
    "command_seconds": ("a command to all, answered", seconds_text),
    "command_processor_seconds": ("of the processor for it, the controller", seconds_text),
    "deployed_seconds": ("a pipeline of all deployed", seconds_text),
    "connecting_seconds": ("connecting of it", seconds_text),
    "worker_deployed_seconds": ("of the processor for it, a worker", seconds_text),
    "deployed_processor_seconds": ("the controller", seconds_text),
    "store_connections": ("connections to the store", "{:,.0f}".format),
    "worker_sockets": ("sockets of a worker", "{:,.0f}".format),
    "controller_files": ("open files of the controller", "{:,.0f}".format),
}


def table_of(rows: Sequence[Row]) -> DataFrame:
    """Return measured rows and extrapolated ones as text, a column for each."""
    beyond = [extrapolated(rows, workers) for workers in BEYOND]
    return table_of_columns(rows, beyond, "workers", _COLUMNS, _OF_THIS_MACHINE)
