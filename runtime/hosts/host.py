"""Where workers run: this machine, or another that an actor of Ray looks after.

A :class:`~drlpp.runtime.session.worker_group.WorkerGroup` gives every host the same orders and
hears the same events of it, wherever it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drlpp.errors import HostLost
from drlpp.runtime.ipc.protocol import Answer, Command, WorkerSpec


@dataclass(frozen=True)
class Ended:
    """A worker process has ended without being asked to; ``how`` says in which way."""

    how: str


Event = tuple[int, Answer | Ended]
"""What has become of a worker, by its number, or what it says."""


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

    @abstractmethod
    def close(self) -> None:
        """Ask the workers to end, and kill those that do not."""


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
