"""Where workers run: this machine, or another that an actor of Ray looks after.

A :class:`~drlpp.runtime.session.worker_group.WorkerGroup` gives every host the same orders and
hears the same events of it, wherever it is.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection as mp_connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

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
from drlpp.runtime.ipc.channel import Channel
from drlpp.runtime.ipc.protocol import Command, WorkerSpec
from drlpp.runtime.ipc.time_limits import TimeLimits
from drlpp.runtime.worker.worker_process import worker_main


@dataclass(frozen=True)
class Ended:
    """A worker process has ended by itself; ``how`` says in which way."""

    how: str


Event = tuple[int, Any]
"""What a worker says, by its number, or that it has ended."""


class WorkerHost(ABC):
    """Some workers of a session, on one machine.

    Whatever it is asked, it raises ``HostLost`` if the machine does not answer.

    Attributes:
        workers: their numbers.
        name: of the host; workers with the same name share it.
        address: where workers on other machines reach these.
        machine: tells machines apart; hosts that are emulated on one share it.
        cores: of the machine that may be used.
        lost: how it was lost.
        is_missed: it is lost, and the session asks for it.
        has_returned: it takes the place of one that was lost, maybe elsewhere, and the session,
            which does not know yet, has to give it files and workers.
    """

    workers: tuple[int, ...]
    name: str
    address: str
    machine: str
    cores: tuple[int, ...]
    lost: HostLost | None = None
    is_missed = False
    has_returned = False

    @property
    @abstractmethod
    def process_ids(self) -> list[int]:
        """Process ids of the workers that run now; on another machine, as it counts them."""

    @abstractmethod
    def start(self, posts: Sequence[WorkerSpec]) -> None:
        """Begin to start the workers anew; none runs."""

    def finish_start(self) -> None:
        """Wait until the workers have been started."""

    @abstractmethod
    def send(self, worker: int, command: Command) -> None:
        """Give a worker a command; if it is dead, an event says so."""

    def finish_send(self) -> None:
        """Wait until the workers have been given their commands."""

    @abstractmethod
    def waitables(self) -> Sequence[Any]:
        """Return what ``multiprocessing.connection.wait`` waits for until there are events."""

    @abstractmethod
    def events(self, ready: Container[Any]) -> list[Event]:
        """Return the events of those waitables that are ready."""

    @abstractmethod
    def publish(self, path: Path) -> None:
        """Put a copy of a file of the session's folder into that of the host, under its name."""

    @abstractmethod
    def remove(self, file: str) -> None:
        """Remove the host's copy of a file; processes that have it open can read on."""

    @abstractmethod
    def fetch(self, file: str) -> Path:
        """Return a file of the host's folder, or a copy of it in the session's."""

    def check(self) -> None:
        """Ask the machine for a sign of life."""

    @abstractmethod
    def kill(self) -> None:
        """End all workers at once; no more events come from them."""

    def close(self) -> None:
        """End all workers; this object is of no use after that."""
        self.kill()


@dataclass
class Hosts:
    """Where the workers of a session run.

    Attributes:
        hosts: in the order of their workers; may be replaced by others with the same workers, after
            they were lost.
        address: of this machine, where all of them reach it.
    """

    hosts: list[Any]
    address: str = "127.0.0.1"

    def release(self) -> None:
        """Let others have the hosts, when all are closed."""


class _Running(NamedTuple):
    """A worker's process, the channel to it, and a file that is ready when the process has ended.

    The file says so whatever becomes of the server; there is none for one that ended at once.
    """

    process: ForkServerProcess
    channel: Channel
    end: int | None


class LocalHost(WorkerHost):
    """Some workers of a session as processes of this machine.

    Replacing them costs a fraction of a second. The server that they are forked from may be killed
    as well: then nobody tells how they end, so that they are killed and waited for without it. If
    it is frozen when it is needed, it is killed too, and another takes its place.

    Args:
        workers, name, address: as in :class:`WorkerHost`.
        folder: for the files that commands name, and for long messages.
    """

    def __init__(
        self,
        workers: Sequence[int],
        folder: Path,
        name: str = "localhost",
        address: str = "127.0.0.1",
    ) -> None:
        self.workers = tuple(workers)
        self.name = name
        self.address = address
        self.machine = "localhost"
        self.cores = tuple(available_cores())
        self.folder = folder
        self._running: dict[int, _Running] = {}

    @property
    def process_ids(self) -> list[int]:
        return [one.process.pid for one in self._running.values() if one.process.pid is not None]

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        """Start the workers; none runs.

        Raises:
            WorkerLost: the server that they are forked from has ended.
        """
        warm_up()
        context = forking_context()
        for post in posts:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=worker_main,
                args=(post, Channel(theirs, str(self.folder))),
                name=f"drlpp-worker-{post.worker}",
                daemon=True,
            )
            began = time.monotonic()
            frozen = threading.Timer(TimeLimits.fork_seconds, kill_server)
            frozen.start()
            try:
                with main_module_left_out():
                    process.start()
            except (EOFError, ConnectionError, FileNotFoundError):
                reason = SERVER_HAS_ENDED
                # The timer says that it is over only after the killing, perhaps later than this.
                if time.monotonic() - began >= TimeLimits.fork_seconds:
                    reason = (
                        "the server that workers are forked from did not do so within "
                        f"{TimeLimits.fork_seconds:.0f} s, and was ended"
                    )
                kill_server()
                raise WorkerLost(
                    f"worker {post.worker} could not be started: {reason}", [post.worker]
                ) from None
            finally:
                frozen.cancel()
                theirs.close()
            assert process.pid is not None
            end = None
            with suppress(ProcessLookupError):
                end = os.pidfd_open(process.pid)
            channel = Channel(ours, str(self.folder))
            self._running[post.worker] = _Running(process, channel, end)

    def send(self, worker: int, command: Command) -> None:
        with suppress(BrokenPipeError):
            self._running[worker].channel.send(command)

    def waitables(self) -> list[Any]:
        running = self._running.values()
        pipes = [one.channel.connection for one in running]
        return [*pipes, *(one.process.sentinel for one in running)]

    def events(self, ready: Container[Any]) -> list[Event]:
        found: list[Event] = []
        for worker, one in self._running.items():
            if one.channel.connection in ready:
                with suppress(EOFError, ConnectionResetError):
                    found.append((worker, one.channel.receive()))
        found.extend(
            (worker, Ended(describe_exit(one.process.exitcode)))
            for worker, one in self._running.items()
            if not one.process.is_alive()
        )
        return found

    def publish(self, path: Path) -> None:
        # The workers read it where it is.
        assert path.parent == self.folder

    def remove(self, file: str) -> None:
        (self.folder / file).unlink(missing_ok=True)

    def fetch(self, file: str) -> Path:
        return self.folder / file

    def kill(self) -> None:
        """End all workers at once.

        Raises:
            HostLost: one does not end.
        """
        for one in self._running.values():
            if one.end is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(one.end, signal.SIGKILL)
        give_up = time.monotonic() + TimeLimits.end_seconds
        for worker, (process, channel, end) in list(self._running.items()):
            left = max(0.0, give_up - time.monotonic())
            ended = end is None or mp_connection.wait([end], left)
            process.join(max(0.0, give_up - time.monotonic()))
            if end is not None and ended and process.is_alive():
                # It is the server that does not say so. Without it, that is known at once.
                kill_server()
                process.join(TimeLimits.reaping_seconds)
            if not ended or process.is_alive():
                raise HostLost(
                    f"worker {worker} (process {process.pid}) does not end, although it was "
                    "killed: it waits for a driver or a file system"
                )
            process.close()
            channel.close()
            if end is not None:
                os.close(end)
            del self._running[worker]
