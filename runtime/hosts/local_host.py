"""Workers on this machine, forked from a server process that has torch loaded already."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Container, Sequence
from contextlib import suppress
from multiprocessing import connection as mp_connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist

from drlpp.errors import HostLost, WorkerLost
from drlpp.runtime.device.emulation import available_cores
from drlpp.runtime.hosts.fork_server import (
    SERVER_HAS_ENDED,
    describe_exit,
    forking_context,
    kill_server,
    main_module_left_out,
    warm_up,
)
from drlpp.runtime.hosts.host import Answered, Ended, Event, WorkerHost
from drlpp.runtime.ipc.channel import Channel
from drlpp.runtime.ipc.protocol import Command, Stop, StoreAddress, WorkerSpec
from drlpp.runtime.ipc.store import open_store
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.runtime.worker.worker_process import worker_main


class LocalHost(WorkerHost):
    """Some workers of a session as processes of this machine.

    Replacing them costs a fraction of a second. The server that they are forked from may be killed
    as well: then nobody tells how they end, so that they are killed and waited for without it. If
    it is frozen when it is needed, it is killed too, and another takes its place.

    Args:
        workers: their numbers.
        folder: for the files that commands name, and for long messages.
        name: of this machine.
        address: where other workers reach these.
        limits: how long to wait for a worker to begin, and to end.

    Attributes:
        folder, limits: as in the arguments; the limits may be replaced.
        store: where workers find each other, if this host has it; None while none run.
    """

    def __init__(
        self,
        workers: Sequence[int],
        folder: Path,
        name: str = "localhost",
        address: str = "127.0.0.1",
        limits: TimeLimits = DEFAULT_TIME_LIMITS,
    ) -> None:
        self.workers = tuple(workers)
        self.name = name
        self.address = address
        self.machine = "localhost"
        self.cores = tuple(available_cores())
        self.folder = folder
        self.limits = limits
        self._context = forking_context()
        self._processes: dict[int, ForkServerProcess] = {}
        # Files that are ready when the process has ended, whoever else knows.
        self._ends: dict[int, int] = {}
        self._channels: dict[int, Channel] = {}
        self._started = 0
        self.store: dist.TCPStore | None = None

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.pid is not None]

    def open_store(self) -> StoreAddress:
        self.store, found = open_store(self.address)
        return found

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        """Start the workers; none runs.

        Raises:
            WorkerLost: the server that they are forked from has ended.
        """
        warm_up()
        self._started = len(posts)
        for post in posts:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=worker_main,
                args=(post, Channel(theirs, str(self.folder))),
                name=f"drlpp-worker-{post.worker}",
                daemon=True,
            )
            frozen = threading.Timer(self.limits.fork_seconds, kill_server)
            frozen.start()
            try:
                with main_module_left_out():
                    process.start()
            except (EOFError, ConnectionError, FileNotFoundError):
                reason = SERVER_HAS_ENDED
                if frozen.finished.is_set():
                    reason = (
                        "the server that workers are forked from did not do so within "
                        f"{self.limits.fork_seconds:.0f} s, and was ended"
                    )
                raise WorkerLost(
                    f"worker {post.worker} could not be started: {reason}", [post.worker]
                ) from None
            finally:
                frozen.cancel()
                theirs.close()
            self._processes[post.worker] = process
            self._channels[post.worker] = Channel(ours, str(self.folder))
            assert process.pid is not None
            with suppress(ProcessLookupError):
                self._ends[post.worker] = os.pidfd_open(process.pid)

    def finish_start(self) -> None:
        """Return at once: the workers have been started."""

    def is_whole(self) -> bool:
        return 0 < self._started == len(self._processes) and all(
            process.is_alive() for process in self._processes.values()
        )

    def send(self, worker: int, command: Command) -> None:
        with suppress(BrokenPipeError):
            self._channels[worker].send(command)

    def waitables(self) -> list[Any]:
        pipes = [channel.connection for channel in self._channels.values()]
        return [*pipes, *(process.sentinel for process in self._processes.values())]

    def events(self, ready: Container[Any]) -> list[Event]:
        found: list[Event] = []
        for worker, channel in self._channels.items():
            if channel.connection in ready:
                with suppress(EOFError, ConnectionResetError):
                    found.append(Answered(worker, channel.receive()))
        found.extend(
            Ended(worker, describe_exit(process.exitcode))
            for worker, process in self._processes.items()
            if not process.is_alive()
        )
        return found

    def publish(self, path: Path) -> None:
        # The workers read it where it is.
        assert path.parent == self.folder

    def remove(self, file: str) -> None:
        (self.folder / file).unlink(missing_ok=True)

    def fetch(self, file: str) -> Path:
        return self.folder / file

    def check(self) -> None:
        """Return at once: this machine answers."""

    def kill(self) -> None:
        """End all workers at once.

        Raises:
            HostLost: one does not end.
        """
        self.store = None
        for end in self._ends.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(end, signal.SIGKILL)
        give_up = time.monotonic() + self.limits.end_seconds
        for worker, process in list(self._processes.items()):
            ends = [self._ends[worker]] if worker in self._ends else []
            ended = not ends or mp_connection.wait(ends, max(0.0, give_up - time.monotonic()))
            process.join(max(0.0, give_up - time.monotonic()))
            if ends and ended and process.is_alive():
                # It is the server that does not say so. Without it, that is known at once.
                kill_server()
                process.join(self.limits.farewell_seconds)
            if not ended or process.is_alive():
                raise HostLost(
                    f"worker {worker} (process {process.pid}) does not end, although it was "
                    "killed: it waits for a driver or a file system"
                )
            process.close()
            self._channels.pop(worker).close()
            for end in ends:
                os.close(end)
            self._ends.pop(worker, None)
            del self._processes[worker]

    def close(self) -> None:
        for channel in self._channels.values():
            with suppress(OSError):
                channel.send(Stop())
        for process in self._processes.values():
            process.join(self.limits.farewell_seconds)
        self.kill()
