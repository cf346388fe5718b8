"""The controller's side of a host of a Ray cluster."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError

from drlpp.errors import DRLPPError, HostLost, StorageFailure
from drlpp.runtime.hosts.host import Answered, Ended, Event, WorkerHost
from drlpp.runtime.hosts.host_keeper import HostFacts, Report
from drlpp.runtime.ipc.commands import Command, RunResult
from drlpp.runtime.ipc.file_chunks import CHUNK_BYTES, chunks_of, write_chunk
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.runtime.ipc.worker_spec import StoreAddress, WorkerSpec

_CLOCK_READINGS = 5
_CHUNKS_ON_THEIR_WAY = 4
_LOOK_SECONDS = 0.5
_SHORT_SECONDS = 2.0
"""For the last order to a host that is lost already."""


Call = Callable[[], Any]
"""What makes Ray do something, and returns its reference to the answer."""


class RayHost(WorkerHost):
    """The workers of one host's actor.

    A thread asks for its events all the time. So each side knows that the other lives: a host that
    says nothing for ``host_silence_seconds`` is lost. Another thread calls Ray for all else, since
    Ray may wait for ever where its own processes have ended. Times in results are turned into those
    of this machine's clock.

    Args:
        actor: of the host (:mod:`drlpp.runtime.hosts.ray_actor`), open.
        facts: what it said then.
        workers: their numbers.
        name: of the host.
        address: where other hosts reach it.
        folder: of the session on this machine; what is fetched is put there.
        machine: this one's identity.
        limits: how long to wait for it.
        blame: returns what a host is lost by, if that is known better, given what it seems to be.
    """

    def __init__(
        self,
        actor: Any,
        facts: HostFacts,
        workers: Sequence[int],
        name: str,
        address: str,
        folder: Path,
        machine: str,
        limits: TimeLimits = DEFAULT_TIME_LIMITS,
        blame: Callable[[str], str] = str,
    ) -> None:
        self.workers = tuple(workers)
        self.name = name
        self.address = address
        self._actor = actor
        self._folder = folder
        self._limits = limits
        self._blame = blame
        self._shares_folder = facts.folder == str(folder)
        self._shares_clock = facts.machine == machine
        self._orders = 0
        self._generation = 0
        self._process_ids: list[int] = []
        self._starting: Future[Any] = Future()
        self._calls: queue.SimpleQueue[tuple[Call, Future[Any]]] = queue.SimpleQueue()
        self._arrived: deque[Report] = deque()
        self._lost: HostLost | None = None
        self._closed = False
        # Something to read where there are events: what waits for workers of this machine waits
        # for files, not for objects of Ray.
        self._news, self._tell = Pipe(duplex=False)
        self._listening = threading.Thread(target=self._listen, daemon=True)
        for thread in (self._listening, threading.Thread(target=self._call_ray, daemon=True)):
            thread.start()

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers that run now, as that machine counts them."""
        return list(self._process_ids)

    def open_store(self) -> StoreAddress:
        """Open a store for the workers of all hosts there."""
        store: StoreAddress = self._ask("open_store")
        return store

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        """Begin to start the workers anew."""
        self._generation += 1
        self._starting = self._order("start", self._generation, tuple(posts))

    def finish_start(self) -> None:
        """Wait until they have been started."""
        self._process_ids = self._reply(self._starting, self._limits.host_start_seconds)

    def is_whole(self) -> bool:
        """Return whether the workers run, as far as the host has reported."""
        self._note_ends()
        return bool(self._process_ids)

    def send(self, worker: int, command: Command) -> None:
        """Give the worker a command."""
        self._order("send", self._generation, worker, command)

    def waitables(self) -> list[Any]:
        """Return what can be read when there are events."""
        if self._lost:
            raise self._lost
        return [self._news]

    def events(self, ready: Container[object]) -> list[Event]:
        """Return the events that the host has reported."""
        if self._news in ready:
            self._news.recv_bytes()
        if self._lost:
            raise self._lost
        self._note_ends()
        found = []
        while self._arrived:
            generation, event = self._arrived.popleft()
            # Workers that were replaced may have said something before they ended.
            if generation == self._generation:
                found.append(self._on_our_clock(event))
        return found

    def _note_ends(self) -> None:
        for generation, event in tuple(self._arrived):
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
        seconds: float = self._reply(
            self._call(self._actor.seconds.remote), self._limits.host_silence_seconds
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
            sent.append(self._order("write", path.name, offset, chunk, last))
            if len(sent) >= _CHUNKS_ON_THEIR_WAY:
                self._reply(sent.popleft())
        while sent:
            self._reply(sent.popleft())

    def remove(self, file: str) -> None:
        """Let the host remove its copy; do not wait for that."""
        if not self._shares_folder:
            self._order("remove", file)

    def fetch(self, file: str) -> Path:
        """Return a copy of the host's file in the session's folder."""
        path = self._folder / file
        offset, last = 0, self._shares_folder
        while not last:
            chunk = self._ask("read", file, offset)
            last = len(chunk) < CHUNK_BYTES
            try:
                write_chunk(path, offset, chunk, last=last)
            except OSError as error:
                raise StorageFailure(f"{path}: cannot be written ({error.strerror})") from None
            offset += len(chunk)
        return path

    def kill(self) -> None:
        """End the workers at once; what they have reported before is forgotten."""
        self._ask("kill")
        self._forget()

    def close(self) -> None:
        """End the workers and the actor."""
        try:
            seconds = _SHORT_SECONDS if self._lost else self._limits.host_start_seconds
            # Also where it seemed to be lost: it may only have been slow. Without an answer it
            # notices by itself that it is left alone.
            with suppress(RayError, TimeoutError):
                self._call(self._actor.close.remote).result(seconds)
        finally:
            self._closed = True
            self._forget()

    def lose(self, reason: str) -> HostLost:
        """Note that the host is lost, which whoever deals with it from now on is told."""
        if self._lost is None:
            self._lost = HostLost(f"host {self.name} cannot be reached: {self._blame(reason)}")
            self._tell.send_bytes(b"lost")
        return self._lost

    def _forget(self) -> None:
        # A generation that nobody speaks of any more.
        self._generation += 1
        self._process_ids = []

    def _ask(self, order: str, *given: Any) -> Any:
        return self._reply(self._order(order, *given))

    def _order(self, order: str, *given: Any) -> Future[Any]:
        if self._lost:
            raise self._lost
        self._orders += 1
        return self._call(partial(self._actor.order.remote, self._orders, order, *given))

    def _call(self, call: Call) -> Future[Any]:
        """Have Ray called, in the order of the calls, and return what the answer will be."""
        reply: Future[Any] = Future()
        self._calls.put((call, reply))
        return reply

    def _call_ray(self) -> None:
        while not self._closed:
            call, reply = self._calls.get()
            try:
                call().future().add_done_callback(partial(_pass_on, reply))
            except Exception as error:
                reply.set_exception(error)

    def _reply(self, reply: Future[Any], seconds: float | None = None) -> Any:
        """Wait for what an order gives.

        Raises:
            HostLost: the host does not answer.
            DRLPPError: what the order has raised.
        """
        limit = seconds or self._limits.host_start_seconds
        give_up = time.monotonic() + limit
        while True:
            if self._lost:
                raise self._lost
            try:
                answer = reply.result(_LOOK_SECONDS)
                break
            except TimeoutError:
                if time.monotonic() > give_up:
                    raise self.lose(f"no answer within {limit:.0f} s") from None
            except RayError as error:
                raise self.lose(reason_of(error)) from None
        if isinstance(answer, DRLPPError):
            raise type(answer)(f"host {self.name}: {answer}")
        return answer

    def _listen(self) -> None:
        """Collect what the host reports, until it is lost or closed."""
        silence = self._limits.host_silence_seconds
        while not self._closed and self._lost is None:
            batch = asked = None
            while batch is None:
                begin = time.monotonic()
                try:
                    asked = asked or self._actor.next_events.remote()
                    batch = ray.get(asked, timeout=silence)
                except GetTimeoutError:
                    # Longer than that: this process was stopped, and the answer is here.
                    if time.monotonic() - begin < silence + self._limits.stopped_seconds:
                        return self._give_up(f"no sign of life for {silence:.0f} s")
                except Exception as error:
                    # Of Ray, whatever it is: a connection that is closed, an actor that is dead.
                    return self._give_up(reason_of(error))
            if batch:
                self._arrived.extend(batch)
                self._tell.send_bytes(b"events")
        return None

    def _give_up(self, reason: str) -> None:
        if not self._closed:
            self.lose(reason)


def _pass_on(reply: Future[Any], done: Future[Any]) -> None:
    error = done.exception()
    if error is None:
        reply.set_result(done.result())
    else:
        reply.set_exception(error)


def reason_of(error: Exception) -> str:
    """Return what an error of Ray's means for a host, in words of ours."""
    if isinstance(error, ActorDiedError | ActorUnavailableError):
        return "the process that keeps its workers has ended, or Ray's on that host has"
    return f"Ray says {' '.join(str(error).split())[:200] or type(error).__name__}"
