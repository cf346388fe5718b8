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
from drlpp.runtime.hosts.host import Ended, Event, WorkerHost
from drlpp.runtime.ipc.channel import Channel
from drlpp.runtime.ipc.protocol import Command, Stop, WorkerSpec
from drlpp.runtime.ipc.time_limits import TimeLimits
from drlpp.runtime.worker.worker_process import worker_main


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
            frozen = threading.Timer(TimeLimits.fork_seconds, kill_server)
            frozen.start()
            try:
                with main_module_left_out():
                    process.start()
            except (EOFError, ConnectionError, FileNotFoundError):
                reason = SERVER_HAS_ENDED
                if frozen.finished.is_set():
                    reason = (
                        "the server that workers are forked from did not do so within "
                        f"{TimeLimits.fork_seconds:.0f} s, and was ended"
                    )
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
                process.join(TimeLimits.farewell_seconds)
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

    def close(self) -> None:
        for one in self._running.values():
            with suppress(OSError):
                one.channel.send(Stop())
        for one in self._running.values():
            one.process.join(TimeLimits.farewell_seconds)
        self.kill()
