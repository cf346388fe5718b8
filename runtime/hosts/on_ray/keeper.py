"""The inside of a host's actor: its workers, its files, and its end when it is left alone.

The controller asks for events all the time. A host that does not hear that for ``lease_seconds``
ends its workers, and so does one whose raylet has ended, since nobody looks after it then.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing import connection as mp_connection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from drlpp.errors import StorageFailure
from drlpp.runtime.device.emulation import available_cores
from drlpp.runtime.hosts.host import Answered, Ended, Event
from drlpp.runtime.hosts.local_host import LocalHost
from drlpp.runtime.ipc.file_chunks import place_of, read_chunk, write_chunk
from drlpp.runtime.ipc.protocol import Command, Failed, StoreAddress, WorkerSpec
from drlpp.runtime.ipc.session_folder import SessionFolder
from drlpp.runtime.ipc.time_limits import TimeLimits

_POLL_SECONDS = 0.5
"""The longest time that a host says nothing."""

Report = tuple[int, Event]
"""An event, and of which generation of workers."""


class HostFacts(NamedTuple):
    """What a host says of itself.

    Attributes:
        folder: of the session there.
        machine: tells machines apart; hosts that are emulated on one share it, and its clock.
        cores: that its processes may use.
    """

    folder: str
    machine: str
    cores: tuple[int, ...]


def machine_identity() -> str:
    """Return what tells this machine, since it was started, from all others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class HostKeeper:
    """The workers of one host, and its copies of the session's files.

    Orders, which are its methods, come from one thread; :meth:`next_events` is called by another.

    Args:
        workers: their numbers.
        name: of the host.
        address: where other hosts reach it.
        folder: of the session, if the controller runs on this host; else it gets one of its own.
        limits: of the session.
    """

    def __init__(
        self,
        workers: Sequence[int],
        name: str,
        address: str,
        folder: str | None,
        limits: TimeLimits,
    ) -> None:
        self._limits = limits
        self._own = SessionFolder() if folder is None else None
        self._folder = Path(self._own.name if self._own else str(folder))
        self._host = LocalHost(workers, self._folder, name, address, limits)
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._generation = 0
        self._watch: tuple[Connection, threading.Thread] | None = None
        self._heard = time.monotonic()

    @property
    def facts(self) -> HostFacts:
        """What this host says of itself."""
        return HostFacts(str(self._folder), machine_identity(), tuple(available_cores()))

    def open_store(self) -> StoreAddress:
        """Open a store for the workers of all hosts."""
        return self._host.open_store()

    def start(self, generation: int, posts: Sequence[WorkerSpec]) -> list[int]:
        """Start the workers, and return their process ids."""
        self._generation = generation
        # Ray kills an actor's whole group.
        self._host.start([replace(post, own_group=True) for post in posts])
        theirs, ours = Pipe(duplex=False)
        thread = threading.Thread(
            target=self._report_events, args=(generation, theirs), daemon=True
        )
        self._watch = ours, thread
        thread.start()
        return self._host.process_ids

    def send(self, generation: int, worker: int, command: Command) -> None:
        """Give a worker a command, unless it was replaced, or has ended, which is reported."""
        if generation != self._generation or not self._host.process_ids:
            return
        try:
            self._host.send(worker, command)
        except StorageFailure as error:
            failed = Failed("StorageFailure", f"host {self._host.name}: {error}")
            self._reports.put((generation, Answered(worker, failed)))

    def write(self, file: str, offset: int, chunk: bytes, last: bool) -> None:
        """Write a chunk of the host's copy of a file."""
        write_chunk(place_of(self._folder, file), offset, chunk, last=last)

    def read(self, file: str, offset: int) -> bytes:
        """Return a chunk of a file that a worker has written."""
        return read_chunk(place_of(self._folder, file), offset)

    def remove(self, file: str) -> None:
        """Remove the host's copy of a file."""
        place_of(self._folder, file).unlink(missing_ok=True)

    def kill(self) -> None:
        """End the workers at once."""
        self._stop_watching()
        self._host.kill()

    def close(self) -> None:
        """End the workers and remove the files; this object is of no use after that."""
        self._stop_watching()
        try:
            self._host.close()
        finally:
            if self._own:
                self._own.cleanup()

    def next_events(self) -> list[Report]:
        """Return what has happened since the last call, after a short time if nothing has."""
        self._heard = time.monotonic()
        found: list[Report] = []
        try:
            found.append(self._reports.get(timeout=_POLL_SECONDS))
            while True:
                found.append(self._reports.get_nowait())
        except queue.Empty:
            return found

    def _report_events(self, generation: int, stop: Connection) -> None:
        """Report what workers say until one ends, after which all are replaced, or until a stop."""
        with stop:
            while True:
                ready = mp_connection.wait([*self._host.waitables(), stop])
                if stop in ready:
                    return
                events = self._host.events(ready)
                for event in events:
                    self._reports.put((generation, event))
                if any(isinstance(event, Ended) for event in events):
                    return

    def _stop_watching(self) -> None:
        if self._watch is not None:
            ours, thread = self._watch
            # The end of it that is read is readable when this one is closed.
            ours.close()
            thread.join()
            self._watch = None

    def end_when_left_alone(self) -> None:
        """End this process, and its workers with it, when nobody looks after it any more.

        That is the controller, and the raylet that has started this process.
        """
        raylet = os.pidfd_open(os.getppid())

        def watch() -> None:
            while not mp_connection.wait([raylet], _POLL_SECONDS):
                if time.monotonic() - self._heard > self._limits.lease_seconds:
                    break
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
