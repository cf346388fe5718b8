"""What a controller and its host agents say to each other, and how it travels.

Every request has a number and every reply that of its request, so that one which comes late, after
its controller has given up on it, is not taken for another's. Files travel in chunks: to a host
agent once it is ready for them, so that it says nothing else until it has all of them.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drlpp.runtime.ipc.commands import Command
from drlpp.runtime.ipc.handshake import SignedConnection
from drlpp.runtime.ipc.time_limits import TimeLimits
from drlpp.runtime.ipc.worker_spec import WorkerSpec

_CHUNK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Handshake:
    """Who a host agent is.

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
    """Begin a session with a new folder, or with that of another host agent of the same host."""

    folder: str | None
    limits: TimeLimits


@dataclass(frozen=True)
class Start:
    """Start the workers."""

    posts: Sequence[WorkerSpec]


@dataclass(frozen=True)
class Dispatch:
    """Give a worker a command; there is no reply to it."""

    worker: int
    command: Command


@dataclass(frozen=True)
class Publish:
    """Keep a file of ``bytes_``, which come in chunks after a first reply; a second one follows."""

    file: str
    bytes_: int


@dataclass(frozen=True)
class Fetch:
    """Send a file, in chunks after the reply."""

    file: str


@dataclass(frozen=True)
class Remove:
    """Remove a file."""

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
class Shutdown:
    """End the process with an exit code; there will be no more sessions, and no reply."""

    exit_code: int


Request = Open | Start | Dispatch | Publish | Fetch | Remove | Clock | Kill | Close | Shutdown


@dataclass(frozen=True)
class Reply:
    """A request was carried out.

    Attributes:
        number: of the request.
        folder: of the host, when a session begins.
        process_ids: of the workers that run.
        seconds: of ``time.perf_counter``.
        bytes_: of a file that follows in chunks.
        problem: why it was not carried out.
        storage: whether that was for want of storage.
    """

    number: int
    folder: str = ""
    process_ids: tuple[int, ...] = ()
    seconds: float = 0.0
    bytes_: int = 0
    problem: str = ""
    storage: bool = False


def send_message(connection: SignedConnection, message: object) -> None:
    """Send ``message`` to a process that this one has not started."""
    # Not by multiprocessing's pickler, which leaves tensors here and sends where they are.
    connection.send_bytes(pickle.dumps(message))


def receive_message(connection: SignedConnection) -> Any:
    """Return the next message; the other side has signed it.

    Raises:
        OSError, EOFError: the connection broke.
    """
    return pickle.loads(connection.recv_bytes())


def chunks_of(path: Path) -> Iterator[bytes]:
    """Yield the content of a file."""
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


def place_of(folder: Path, file: str) -> Path:
    """Return where a file of that name is.

    Raises:
        OSError: the name leads out of the folder.
    """
    if not file or file != Path(file).name or file == "..":
        raise OSError(f"{file!r} is not the name of a file")
    return folder / file


def watch_peer(peer: socket.socket, silence_seconds: float) -> None:
    """Notice within the given number of seconds if the machine at the other end is gone.

    Shorter failures are bridged: what was sent meanwhile arrives when the network is back.
    """
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    every = max(1, int(silence_seconds / 6))
    for option, value in (
        ("TCP_KEEPIDLE", every),
        ("TCP_KEEPINTVL", every),
        ("TCP_KEEPCNT", 5),
        ("TCP_USER_TIMEOUT", int(1000 * silence_seconds)),
    ):
        if hasattr(socket, option):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def limit_reading(peer: socket.socket, seconds: float) -> None:
    """Let a read from ``peer`` fail after a wait of the given number of seconds, 0 for never."""
    whole, rest = divmod(seconds, 1)
    timeval = struct.pack("ll", int(whole), int(1e6 * rest))
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
