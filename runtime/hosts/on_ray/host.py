"""The controller's side of a host of a Ray cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from drlpp.errors import StorageFailure
from drlpp.runtime.hosts.host import Answered, Ended, Event, WorkerHost
from drlpp.runtime.hosts.on_ray.keeper import machine_identity
from drlpp.runtime.hosts.on_ray.line import ActorLine
from drlpp.runtime.ipc.file_chunks import CHUNK_BYTES, chunks_of, write_chunk
from drlpp.runtime.ipc.protocol import Command, RunResult, StoreAddress, WorkerSpec

_CLOCK_READINGS = 5
_SEEK_SECONDS = 0.5
"""Between two looks for where a lost host could be again."""


class RayHost(WorkerHost):
    """The workers of one host's actor.

    Times in results are turned into those of this machine's clock. After it was lost, and somebody
    has asked whether it has returned, a thread looks for another actor to keep the workers; they
    and their host keep their numbers and name, wherever that is.

    Args:
        line: to its actor.
        folder: of the session on this machine; what is fetched is put there.
        seek: looks once for another actor, and returns None if there is none; may take long.

    Attributes:
        line: to its actor, or to that which it had when it was lost.
    """

    def __init__(
        self,
        line: ActorLine,
        folder: Path,
        seek: Callable[[ActorLine], ActorLine | None] = lambda lost: None,
    ) -> None:
        self.workers = line.plan.workers
        self.name = line.plan.name
        self._folder = folder
        self._seek = seek
        self._generation = 0
        self._process_ids: list[int] = []
        self._starting: Future[Any] = Future()
        self._again: Future[ActorLine] | None = None
        self._closed = False
        self._connect(line)

    def _connect(self, line: ActorLine) -> None:
        self.line = line
        self.address = line.plan.node.address if line.plan.node else ""
        self.machine, self.cores = line.facts.machine, line.facts.cores
        self._shares_folder = line.facts.folder == str(self._folder)
        self._shares_clock = self.machine == machine_identity()

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers that run now, as that machine counts them."""
        return list(self._process_ids)

    def open_store(self) -> StoreAddress:
        """Open a store for the workers of all hosts there."""
        store: StoreAddress = self.line.ask("open_store")
        return store

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        """Begin to start the workers anew."""
        self._generation += 1
        self._starting = self.line.order("start", self._generation, tuple(posts))

    def finish_start(self) -> None:
        """Wait until they have been started."""
        self._process_ids = self.line.reply(self._starting)

    def is_whole(self) -> bool:
        """Return whether the workers run, as far as the host has reported."""
        return bool(self._process_ids) and not any(
            generation == self._generation and isinstance(event, Ended)
            for generation, event in tuple(self.line.arrived)
        )

    def has_returned(self, worker: int) -> bool:
        """Return whether an actor to keep the workers has been found, after the first was lost."""
        if self.line.lost is None:
            return False
        if self._again is None:
            self._again = Future()
            threading.Thread(target=self._look, args=(self._again,), daemon=True).start()
        return self._again.done()

    def _look(self, again: Future[ActorLine]) -> None:
        while not self._closed:
            with suppress(RayError):
                found = self._seek(self.line)
                if found is not None:
                    return again.set_result(found)
            time.sleep(_SEEK_SECONDS)
        return None

    def rejoin(self) -> None:
        """Let the actor that has been found keep the workers."""
        assert self._again is not None
        found, self._again = self._again.result(), None
        self._forget()
        self._connect(found)

    def send(self, worker: int, command: Command) -> None:
        """Give the worker a command."""
        self.line.order("send", self._generation, worker, command)

    def waitables(self) -> list[Any]:
        """Return what can be read when there are events."""
        self.line.check()
        return [self.line.news]

    def events(self, ready: Container[object]) -> list[Event]:
        """Return the events that the host has reported."""
        if self.line.news in ready:
            self.line.news.recv_bytes()
        self.line.check()
        found = []
        while self.line.arrived:
            generation, event = self.line.arrived.popleft()
            # Workers that were replaced may have said something before they ended.
            if generation == self._generation:
                found.append(self._on_our_clock(event))
        return found

    def _on_our_clock(self, event: Event) -> Event:
        if self._shares_clock or not isinstance(event, Answered):
            return event
        if not isinstance(event.answer, RunResult):
            return event
        readings = []
        for _ in range(_CLOCK_READINGS):
            begin = time.perf_counter()
            theirs = self.line.seconds()
            end = time.perf_counter()
            readings.append((end - begin, theirs - (begin + end) / 2))
        # How far that machine's clock is ahead, by the reading that took least.
        return replace(event, answer=event.answer.later(-min(readings)[1]))

    def check(self) -> None:
        """Ask the host for a sign of life."""
        self.line.seconds()

    def publish(self, path: Path) -> None:
        """Send the file, unless the host has the session's folder itself."""
        if not self._shares_folder:
            for offset, chunk, last in chunks_of(path):
                self.line.ask("write", path.name, offset, chunk, last)

    def remove(self, file: str) -> None:
        """Let the host remove its copy; do not wait for that."""
        if not self._shares_folder:
            self.line.order("remove", file)

    def fetch(self, file: str) -> Path:
        """Return a copy of the host's file in the session's folder."""
        path = self._folder / file
        offset, last = 0, self._shares_folder
        while not last:
            chunk = self.line.ask("read", file, offset)
            last = len(chunk) < CHUNK_BYTES
            try:
                write_chunk(path, offset, chunk, last=last)
            except OSError as error:
                raise StorageFailure(f"{path}: cannot be written ({error.strerror})") from None
            offset += len(chunk)
        return path

    def kill(self) -> None:
        """End the workers at once; what they have reported before is forgotten."""
        self.line.ask("kill")
        self._forget()

    def close(self) -> None:
        """End the workers and the actor; those of a lost host find out that they are left alone."""
        self._closed = True
        try:
            self.line.close()
        finally:
            self._forget()

    def _forget(self) -> None:
        # A generation that nobody speaks of any more.
        self._generation += 1
        self._process_ids = []
