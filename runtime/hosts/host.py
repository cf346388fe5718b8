"""Where workers run: this machine, or another that a keeper looks after.

The pool gives every host the same orders and hears the same events of it, wherever it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drlpp.runtime.ipc.commands import Answer, Command


@dataclass(frozen=True)
class StoreAddress:
    """Where the workers of a session find each other.

    Attributes:
        address: of the machine with the store.
        port: of the store.
        token: the prefix of everything that the session keeps there, so that no other session
            meets it by mistake. The store itself has no password.
    """

    address: str
    port: int
    token: str = field(repr=False)


@dataclass(frozen=True)
class Post:
    """What a worker is told when it starts.

    Attributes:
        worker: its number.
        place: its number among the workers of its host.
        address: of its host, where other workers reach it.
        store: where it finds them.
        speed: below 1 it sleeps after every pass, as if it took so much longer.
        core: that it computes on; None leaves it to the system.
    """

    worker: int
    place: int
    address: str
    store: StoreAddress
    speed: float = 1.0
    core: int | None = None


@dataclass(frozen=True)
class Answered:
    """A worker has carried out a command, has failed to, or tells how far it is."""

    worker: int
    answer: Answer


@dataclass(frozen=True)
class Ended:
    """A worker process has ended without being asked to, and ``how``."""

    worker: int
    how: str


@dataclass(frozen=True)
class Interrupted:
    """Ctrl-C has been pressed on another host."""

    host: str


Event = Answered | Ended | Interrupted


class WorkerHost(ABC):
    """Some workers of a session, on one machine.

    Attributes:
        workers: their numbers.
        name: of the machine; workers with the same name share it.
        address: where workers on other machines reach these.
    """

    workers: tuple[int, ...]
    name: str
    address: str

    @property
    @abstractmethod
    def process_ids(self) -> list[int]:
        """Of the workers that run now; of another machine, as it counts them."""

    @abstractmethod
    def start(self, posts: Sequence[Post]) -> None:
        """Begin to start the workers anew; none runs.

        Raises:
            HostLost: the machine does not answer.
        """

    @abstractmethod
    def finish_start(self) -> None:
        """Wait until the workers have been started.

        Raises:
            HostLost: the machine does not answer.
        """

    @abstractmethod
    def is_whole(self) -> bool:
        """Whether all workers run."""

    @abstractmethod
    def send(self, worker: int, command: Command) -> None:
        """Give a worker a command; if it is dead, an event tells."""

    @abstractmethod
    def waitables(self) -> Sequence[Any]:
        """What ``multiprocessing.connection.wait`` waits for until there are events."""

    @abstractmethod
    def events(self, ready: Container[Any]) -> list[Event]:
        """What those of the waitables tell that are ready.

        Raises:
            HostLost: the machine does not answer.
        """

    @abstractmethod
    def publish(self, path: Path) -> None:
        """Put a copy of a file of the session's folder into that of the host, under its name."""

    @abstractmethod
    def remove(self, file: str) -> None:
        """Remove the host's copy of a file; who reads it reads on."""

    @abstractmethod
    def fetch(self, file: str) -> Path:
        """A file of the host's folder, or a copy of it in the session's."""

    @abstractmethod
    def kill(self) -> None:
        """End all workers at once; nothing is heard of them any more."""

    @abstractmethod
    def close(self) -> None:
        """Ask the workers to end, and kill those that do not."""
