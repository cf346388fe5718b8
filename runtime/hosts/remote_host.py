"""The controller's side of a host agent: workers on another machine, or started by ``torchrun``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import connection as mp_connection
from pathlib import Path
from typing import Any

from drlpp.errors import HostLost, RunFailure, StorageFailure
from drlpp.runtime.hosts.host import Answered, Ended, Event, Interrupted, WorkerHost
from drlpp.runtime.hosts.host_protocol import (
    Clock,
    Close,
    Dispatch,
    Fetch,
    Handshake,
    Kill,
    Open,
    Publish,
    Remove,
    Reply,
    Request,
    Start,
    chunks_of,
    receive_message,
    send_message,
    write_file,
)
from drlpp.runtime.ipc.commands import Command, RunResult
from drlpp.runtime.ipc.handshake import SignedConnection
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits
from drlpp.runtime.ipc.worker_spec import WorkerSpec

_CLOCK_READINGS = 5


class RemoteHost(WorkerHost):
    """The workers of one host agent.

    Times in their results are turned into those of this machine's clock.

    Args:
        hello: who the host agent is.
        connection: to it.
        name: of its host.
        folder: of the session on this machine; what is fetched is put there.
        limits: how long to wait for it; those of its workers too.
        shares_clock: whether its host is emulated on this machine.
    """

    def __init__(
        self,
        hello: Handshake,
        connection: SignedConnection,
        name: str,
        folder: Path,
        limits: TimeLimits = DEFAULT_TIME_LIMITS,
        *,
        shares_clock: bool,
    ) -> None:
        self.workers = (hello.rank,)
        self.name = name
        self.address = hello.address
        self._connection = connection
        self._folder = folder
        self._limits = limits
        self._shares_clock = shares_clock
        self._publishes = self._shares_folder = False
        self._lost: HostLost | None = None
        self._requests = 0
        self._process_ids: tuple[int, ...] = ()
        self._events: deque[Event] = deque()

    def open(self, host_folder: str | None) -> str:
        """Begin a session.

        Args:
            host_folder: of the session on that host, if another host agent there or this process
                has it already; then that one publishes files.

        Returns:
            The folder on that host.

        Raises:
            HostLost: the host does not answer.
        """
        self._publishes = host_folder is None
        self._shares_folder = host_folder == str(self._folder)
        return self._ask(Open(host_folder, self._limits)).folder

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers that run now, as that machine counts them."""
        return list(self._process_ids)

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        """Begin to start the workers anew."""
        self._send(Start(tuple(posts)))

    def finish_start(self) -> None:
        """Wait until the host agent has started them."""
        self._process_ids = self._wait_for_reply(self._limits.host_start_seconds).process_ids

    def is_whole(self) -> bool:
        """Return whether the workers run, as far as the host agent has reported."""
        while mp_connection.wait(self.waitables(), 0):
            self._take_in()
        self._note_ends()
        return bool(self._process_ids)

    def send(self, worker: int, command: Command) -> None:
        """Give the worker a command."""
        self._send(Dispatch(worker, command))

    def waitables(self) -> list[Any]:
        """Return the connection to the host agent."""
        if self._lost:
            raise self._lost
        return [self._connection]

    def events(self, ready: Container[object]) -> list[Event]:
        """Return the events that the host agent has reported."""
        if self._connection in ready:
            self._take_in()
        self._note_ends()
        found = list(self._events)
        self._events.clear()
        return [self._on_our_clock(event) for event in found]

    def _note_ends(self) -> None:
        if any(isinstance(event, Ended) for event in self._events):
            self._process_ids = ()

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
            theirs = self._ask(Clock()).seconds
            end = time.perf_counter()
            readings.append((end - begin, theirs - (begin + end) / 2))
        return min(readings)[1]

    def publish(self, path: Path) -> None:
        """Send the file, unless another host agent of the host does."""
        if not self._publishes:
            return
        self._ask(Publish(path.name, path.stat().st_size))
        for chunk in chunks_of(path):
            with self._watched():
                self._connection.send_bytes(chunk)
        self._wait_for_reply()

    def remove(self, file: str) -> None:
        """Let the host agent that got the file remove it; do not wait for that."""
        if self._publishes:
            self._send(Remove(file))

    def fetch(self, file: str) -> Path:
        """Return a copy of the host's file in the session's folder."""
        path = self._folder / file
        if not self._shares_folder:
            bytes_ = self._ask(Fetch(file)).bytes_
            try:
                write_file(path, self._chunks(bytes_))
            except OSError as error:
                raise StorageFailure(f"{path}: cannot be written ({error.strerror})") from None
            self._wait_for_reply()
        return path

    def _chunks(self, bytes_: int) -> Iterator[bytes]:
        while bytes_ > 0:
            with self._watched():
                chunk = self._connection.recv_bytes()
            bytes_ -= len(chunk)
            yield chunk

    def kill(self) -> None:
        """End the workers at once; what they have reported before is forgotten."""
        self._ask(Kill())
        self._forget()

    def close(self) -> None:
        """End the session on that host; the host agent waits for the next."""
        self._ask(Close())
        self._forget()

    def _forget(self) -> None:
        self._events = deque(event for event in self._events if isinstance(event, Interrupted))
        self._process_ids = ()

    def _ask(self, request: Request) -> Reply:
        self._send(request)
        return self._wait_for_reply()

    def _send(self, request: Request) -> None:
        self._requests += 1
        with self._watched():
            send_message(self._connection, (self._requests, request))

    def _wait_for_reply(self, limit_seconds: float | None = None) -> Reply:
        """Return the reply to the last request; events that arrive before it are kept."""
        seconds = limit_seconds or self._limits.host_silence_seconds
        while True:
            with self._watched():
                if not self._connection.poll(seconds):
                    raise TimeoutError(f"no answer within {seconds:.0f} s")
            reply = self._take_in()
            if reply is None or reply.number != self._requests:
                continue
            if reply.problem:
                failure = StorageFailure if reply.storage else RunFailure
                raise failure(f"host {self.name}: {reply.problem}")
            return reply

    def _take_in(self) -> Reply | None:
        """Take in the next message: keep it if it is an event, return it if it is a reply."""
        with self._watched():
            message = receive_message(self._connection)
        if isinstance(message, Reply):
            return message
        self._events.append(message)
        return None

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """End the connection if anything ends an exchange in the middle."""
        if self._lost:
            raise self._lost
        try:
            yield
        except BaseException as error:
            closed = isinstance(error, EOFError)
            reason = "it closed the connection" if closed else str(error) or type(error).__name__
            self._lost = HostLost(
                f"host {self.name} (rank {self.workers[0]}) cannot be reached: {reason}"
            )
            self._connection.close()
            if isinstance(error, OSError | EOFError):
                raise self._lost from None
            raise
