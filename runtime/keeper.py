"""What runs on every rank of a ``torchrun`` launch but the first: it keeps workers of a session.

A keeper computes nothing itself, so it always listens: it starts workers, passes commands on to
them and their answers back, keeps the host's copies of the session's files, and ends its workers
when the controller is gone. Only its worker dies in a trial that fails, so ``torchrun`` never has
to restart anything. The controller's side of it is :mod:`drlpp.runtime.remote_host`.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection as mp_connection
from multiprocessing.connection import Connection
from pathlib import Path

from drlpp.runtime.commands import Command
from drlpp.runtime.hosts import Ended, Event, Post
from drlpp.runtime.local_host import LocalHost
from drlpp.runtime.session_folder import SessionFolder

SILENCE_SECONDS = 30
"""Without a sign of life from another machine, after which it counts as lost."""

_CHUNK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Hello:
    """Who a keeper is.

    Attributes:
        rank: of its process in the launch; the number of its worker.
        node: number of its host in the launch.
        host_name: what the host calls itself.
        address: of the host, as the controller reaches it.
        machine: tells machines apart; hosts that are emulated on one share it, and its clock.
        cores: that its processes may use.
    """

    rank: int
    node: int
    host_name: str
    address: str
    machine: str
    cores: tuple[int, ...]


@dataclass(frozen=True)
class Open:
    """Begin a session with a new folder, or with that of another keeper of the same host."""

    folder: str | None


@dataclass(frozen=True)
class Start:
    """Start the workers."""

    posts: Sequence[Post]


@dataclass(frozen=True)
class Tell:
    """Give a worker a command; it has no reply of its own."""

    worker: int
    command: Command


@dataclass(frozen=True)
class Publish:
    """Keep a file, whose ``bytes_`` follow in chunks."""

    file: str
    bytes_: int


@dataclass(frozen=True)
class Remove:
    """Remove a file; it has no reply."""

    file: str


@dataclass(frozen=True)
class Fetch:
    """Send a file."""

    file: str


@dataclass(frozen=True)
class Clock:
    """Say what time it is."""


@dataclass(frozen=True)
class Kill:
    """End the workers at once."""


@dataclass(frozen=True)
class Close:
    """End the session."""


@dataclass(frozen=True)
class Leave:
    """End the process; there will be no more sessions."""


Request = Open | Start | Tell | Publish | Remove | Fetch | Clock | Kill | Close | Leave


@dataclass(frozen=True)
class Reply:
    """A request was carried out.

    Attributes:
        folder: of the host, when a session begins.
        process_ids: of the workers that run.
        seconds: of ``time.perf_counter``.
        bytes_: of a file that follows in chunks.
        problem: why it was not carried out.
    """

    folder: str = ""
    process_ids: tuple[int, ...] = ()
    seconds: float = 0.0
    bytes_: int = 0
    problem: str = ""


class Keeper:
    """Keeps the workers of one rank.

    Args:
        hello: who it is.
        connection: to the controller, which has proven that it knows the token, and vice versa.
    """

    def __init__(self, hello: Hello, connection: Connection) -> None:
        self._hello = hello
        self._connection = connection
        self._host: LocalHost | None = None
        self._own_folder: SessionFolder | None = None

    def serve(self) -> None:
        """Until the controller says that it ends.

        Raises:
            OSError, EOFError: if the connection breaks instead.
        """
        try:
            send_message(self._connection, self._hello)
            while True:
                waitables = self._host.waitables() if self._host else []
                ready = mp_connection.wait([self._connection, *waitables])
                self._report(self._host.events(ready) if self._host else [])
                if self._connection not in ready:
                    continue
                request = self._connection.recv()
                if isinstance(request, Leave):
                    return
                self._carry_out(request)
        finally:
            self._end_session()

    def _report(self, events: Sequence[Event]) -> None:
        for event in events:
            send_message(self._connection, event)
        if self._host and any(isinstance(event, Ended) for event in events):
            # All workers are replaced after that; a dead one would be reported again and again.
            self._host.kill()

    def _carry_out(self, request: Request) -> None:
        if isinstance(request, Tell):
            # A worker that has ended takes no command; that it has is on its way.
            if self._host and self._host.process_ids:
                self._host.send(request.worker, request.command)
            return
        if isinstance(request, Remove):
            if self._host:
                self._host.remove(Path(request.file).name)
            return
        try:
            self._answer(request)
        except OSError as error:
            send_message(self._connection, Reply(problem=str(error)))

    def _answer(self, request: Request) -> None:
        reply = Reply()
        match request:
            case Open(folder):
                reply = Reply(folder=self._begin_session(folder))
            case Start(posts):
                assert self._host is not None
                self._host.start(posts)
                reply = Reply(process_ids=tuple(self._host.process_ids))
            case Publish(file, bytes_):
                self._keep(file, bytes_)
            case Fetch(file):
                assert self._host is not None
                self._send_file(self._host.fetch(file))
                return
            case Clock():
                reply = Reply(seconds=time.perf_counter())
            case Kill():
                if self._host:
                    self._host.kill()
            case Close():
                self._end_session()
        send_message(self._connection, reply)

    def _begin_session(self, folder: str | None) -> str:
        if folder is None:
            self._own_folder = SessionFolder()
            folder = self._own_folder.name
        self._host = LocalHost([self._hello.rank], Path(folder))
        return folder

    def _keep(self, file: str, bytes_: int) -> None:
        assert self._host is not None
        write_file(self._host.folder / Path(file).name, self._chunks(bytes_))

    def _chunks(self, bytes_: int) -> Iterator[bytes]:
        while bytes_ > 0:
            chunk = self._connection.recv_bytes()
            bytes_ -= len(chunk)
            yield chunk

    def _send_file(self, path: Path) -> None:
        send_message(self._connection, Reply(bytes_=path.stat().st_size))
        for chunk in chunks_of(path):
            self._connection.send_bytes(chunk)

    def _end_session(self) -> None:
        if self._host:
            self._host.close()
            self._host = None
        if self._own_folder:
            self._own_folder.cleanup()
            self._own_folder = None


def chunks_of(path: Path) -> Iterator[bytes]:
    """The content of a file."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def write_file(path: Path, chunks: Iterator[bytes]) -> None:
    """Write a file that takes over its name when it is whole.

    Raises:
        OSError: it cannot be written; all chunks have been taken nevertheless.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
        partial.replace(path)
    except OSError:
        for _ in chunks:
            pass
        partial.unlink(missing_ok=True)
        raise


def send_message(connection: Connection, message: object) -> None:
    """Send ``message`` to a process that this one has not started.

    ``connection.send`` would leave tensors here and send where in this process they are.
    """
    connection.send_bytes(pickle.dumps(message))


def watch_peer(peer: socket.socket) -> None:
    """Notice within :data:`SILENCE_SECONDS` if the machine at the other end is gone.

    Less than that is bridged: what was sent meanwhile arrives when the network is back.
    """
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    every = SILENCE_SECONDS // 6
    for option, value in (
        ("TCP_KEEPIDLE", every),
        ("TCP_KEEPINTVL", every),
        ("TCP_KEEPCNT", 5),
        ("TCP_USER_TIMEOUT", 1000 * SILENCE_SECONDS),
    ):
        if hasattr(socket, option):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def limit_reading(peer: socket.socket, seconds: int) -> None:
    """Let reads from ``peer`` fail after so many seconds, 0 for never."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
