"""The controller's side of a host of a Ray cluster."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from drlpp.errors import HostLost, StorageFailure
from drlpp.runtime.hosts.host import Answered, Ended, Event, WorkerHost
from drlpp.runtime.hosts.host_keeper import HostFacts
from drlpp.runtime.hosts.on_ray.line import ActorLine
from drlpp.runtime.ipc.file_chunks import CHUNK_BYTES, chunks_of, write_chunk
from drlpp.runtime.ipc.protocol import Command, RunResult, StoreAddress, WorkerSpec
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits

_CLOCK_READINGS = 5
_CHUNKS_ON_THEIR_WAY = 4
_SEEK_SECONDS = 0.5
"""Between two looks for where a lost host could be again."""


@dataclass(frozen=True)
class Contact:
    """The actor of a host, open.

    Attributes:
        actor: :mod:`drlpp.runtime.hosts.on_ray.actor`.
        facts: what it said when it was opened.
        address: where other hosts reach its workers.
    """

    actor: Any
    facts: HostFacts
    address: str


class RayHost(WorkerHost):
    """The workers of one host's actor.

    Times in results are turned into those of this machine's clock. After it was lost, and somebody
    has asked whether it has returned, a thread looks for another actor to keep the workers; they
    and their host keep their numbers and name, wherever that is.

    Args:
        contact: to its actor; None while there is no such host: it is lost from the beginning.
        workers: their numbers.
        name: of the host.
        folder: of the session on this machine; what is fetched is put there.
        machine: this one's identity.
        limits: how long to wait for it.
        blame: returns what a host is lost by, if that is known better, given what it seems to be.
        seek: looks once for another actor, and returns None if there is none; may take long.
    """

    def __init__(
        self,
        contact: Contact | None,
        workers: Sequence[int],
        name: str,
        folder: Path,
        machine: str,
        limits: TimeLimits = DEFAULT_TIME_LIMITS,
        blame: Callable[[str], str] = str,
        seek: Callable[[], Contact | None] = lambda: None,
    ) -> None:
        self.workers = tuple(workers)
        self.name = name
        self._folder = folder
        self._here = machine
        self._limits = limits
        self._blame = blame
        self._seek = seek
        self._generation = 0
        self._process_ids: list[int] = []
        self._starting: Future[Any] = Future()
        self._again: Future[Contact] | None = None
        self._closed = False
        if contact is not None:
            self._connect(contact)
            return
        self.address, self.machine, self.cores = "", f"of missing host {name}", ()
        self._shares_folder = self._shares_clock = False
        missing = HostLost(f"host {name} is not there", self.workers)
        self._line = ActorLine(None, name, limits, blame, missing)

    def _connect(self, contact: Contact) -> None:
        self.address = contact.address
        self._shares_folder = contact.facts.folder == str(self._folder)
        self.machine, self.cores = contact.facts.machine, contact.facts.cores
        self._shares_clock = self.machine == self._here
        self._line = ActorLine(contact.actor, self.name, self._limits, self._blame)

    @property
    def is_lost(self) -> bool:
        """Whether no actor keeps its workers."""
        return self._line.lost is not None

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers that run now, as that machine counts them."""
        return list(self._process_ids)

    def open_store(self) -> StoreAddress:
        """Open a store for the workers of all hosts there."""
        store: StoreAddress = self._line.ask("open_store")
        return store

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        """Begin to start the workers anew."""
        self._generation += 1
        self._starting = self._line.order("start", self._generation, tuple(posts))

    def finish_start(self) -> None:
        """Wait until they have been started."""
        self._process_ids = self._line.reply(self._starting, self._limits.host_start_seconds)

    def is_whole(self) -> bool:
        """Return whether the workers run, as far as the host has reported."""
        self._note_ends()
        return bool(self._process_ids)

    def has_returned(self, worker: int) -> bool:
        """Return whether an actor to keep the workers has been found, after the first was lost."""
        if not self.is_lost:
            return False
        if self._again is None:
            self._again = Future()
            threading.Thread(target=self._look, args=(self._again,), daemon=True).start()
        return self._again.done()

    def _look(self, again: Future[Contact]) -> None:
        while not self._closed:
            with suppress(RayError):
                found = self._seek()
                if found is not None:
                    return again.set_result(found)
            time.sleep(_SEEK_SECONDS)
        return None

    def rejoin(self) -> None:
        """Let the actor that has been found keep the workers."""
        assert self._again is not None
        found, self._again = self._again.result(), None
        self._line.close()
        self._forget()
        self._connect(found)

    def send(self, worker: int, command: Command) -> None:
        """Give the worker a command."""
        self._line.order("send", self._generation, worker, command)

    def waitables(self) -> list[Any]:
        """Return what can be read when there are events."""
        self._line.check()
        return [self._line.news]

    def events(self, ready: Container[object]) -> list[Event]:
        """Return the events that the host has reported."""
        if self._line.news in ready:
            self._line.news.recv_bytes()
        self._line.check()
        self._note_ends()
        found = []
        while self._line.arrived:
            generation, event = self._line.arrived.popleft()
            # Workers that were replaced may have said something before they ended.
            if generation == self._generation:
                found.append(self._on_our_clock(event))
        return found

    def _note_ends(self) -> None:
        for generation, event in tuple(self._line.arrived):
            if generation == self._generation and isinstance(event, Ended):
                self._process_ids = []

    def _on_our_clock(self, event: Event) -> Event:
        if self._shares_clock or not isinstance(event, Answered):
            return event
        if not isinstance(event.answer, RunResult):
            return event
        return replace(event, answer=event.answer.later(-self._seconds_ahead()))

    def _seconds_ahead(self) -> float:
        """Return how far that machine's clock is ahead, by the reading that took least."""
        readings = []
        for _ in range(_CLOCK_READINGS):
            begin = time.perf_counter()
            theirs = self._clock()
            end = time.perf_counter()
            readings.append((end - begin, theirs - (begin + end) / 2))
        return min(readings)[1]

    def _clock(self) -> float:
        seconds: float = self._line.reply(
            self._line.call(self._line.actor.seconds.remote), self._limits.host_silence_seconds
        )
        return seconds

    def check(self) -> None:
        """Ask the host for a sign of life."""
        self._clock()

    def publish(self, path: Path) -> None:
        """Send the file, unless the host has the session's folder itself."""
        if self._shares_folder:
            return
        sent: deque[Any] = deque()
        for offset, chunk, last in chunks_of(path):
            sent.append(self._line.order("write", path.name, offset, chunk, last))
            if len(sent) >= _CHUNKS_ON_THEIR_WAY:
                self._line.reply(sent.popleft())
        while sent:
            self._line.reply(sent.popleft())

    def remove(self, file: str) -> None:
        """Let the host remove its copy; do not wait for that."""
        if not self._shares_folder:
            self._line.order("remove", file)

    def fetch(self, file: str) -> Path:
        """Return a copy of the host's file in the session's folder."""
        path = self._folder / file
        offset, last = 0, self._shares_folder
        while not last:
            chunk = self._line.ask("read", file, offset)
            last = len(chunk) < CHUNK_BYTES
            try:
                write_chunk(path, offset, chunk, last=last)
            except OSError as error:
                raise StorageFailure(f"{path}: cannot be written ({error.strerror})") from None
            offset += len(chunk)
        return path

    def kill(self) -> None:
        """End the workers at once; what they have reported before is forgotten."""
        self._line.ask("kill")
        self._forget()

    def close(self) -> None:
        """End the workers and the actor; those of a lost host find out that they are left alone."""
        try:
            if self._line.lost is None:
                with suppress(RayError, TimeoutError):
                    closing = self._line.call(self._line.actor.close.remote)
                    closing.result(self._limits.host_start_seconds)
        finally:
            self._closed = True
            self._line.close()
            self._forget()

    def lose(self, reason: str) -> HostLost:
        """Note that the host is lost, which whoever deals with it from now on is told."""
        return self._line.lose(reason)

    def _forget(self) -> None:
        # A generation that nobody speaks of any more.
        self._generation += 1
        self._process_ids = []
