"""Where workers run: this machine, or another that an actor of Ray looks after.

A :class:`~drlpp.runtime.session.worker_group.WorkerGroup` gives every host the same orders and
hears the same events of it, wherever it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from drlpp.runtime.ipc.protocol import Answer, Command, StoreAddress, WorkerSpec


@dataclass(frozen=True)
class Answered:
    """A worker has carried out a command, has failed to, or tells how far it is."""

    worker: int
    answer: Answer


@dataclass(frozen=True)
class Ended:
    """A worker process has ended without being asked to; ``how`` says in which way."""

    worker: int
    how: str


Event = Answered | Ended


class WorkerHost(ABC):
    """Some workers of a session, on one machine.

    Whatever it is asked, it raises ``HostLost`` if the machine does not answer.

    Attributes:
        workers: their numbers.
        name: of the host; workers with the same name share it.
        address: where workers on other machines reach these.
        machine: tells machines apart; hosts that are emulated on one share it.
        cores: of the machine that may be used.
    """

    workers: tuple[int, ...]
    name: str
    address: str
    machine: str
    cores: tuple[int, ...]

    @property
    @abstractmethod
    def process_ids(self) -> list[int]:
        """Process ids of the workers that run now; on another machine, as it counts them."""

    @abstractmethod
    def open_store(self) -> StoreAddress:
        """Open a store on this machine, until the workers end: there those of all hosts meet."""

    @abstractmethod
    def start(self, posts: Sequence[WorkerSpec]) -> None:
        """Begin to start the workers anew; none runs."""

    @abstractmethod
    def finish_start(self) -> None:
        """Wait until the workers have been started."""

    @abstractmethod
    def is_whole(self) -> bool:
        """Return whether all workers run that were started last; none were at first."""

    def has_returned(self, worker: int) -> bool:
        """Return at once whether a worker that was given up can be started again."""
        return False

    def rejoin(self) -> None:
        """Be used again, after it has returned: without workers or files, maybe elsewhere."""

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

    @abstractmethod
    def check(self) -> None:
        """Ask the machine for a sign of life."""

    @abstractmethod
    def kill(self) -> None:
        """End all workers at once; no more events come from them."""

    @abstractmethod
    def close(self) -> None:
        """Ask the workers to end, and kill those that do not."""


class Places(NamedTuple):
    """Where some workers are, in their order.

    Attributes:
        host_names: the name of every worker's host.
        machines: the machine of every worker, and the cores that may be used there.
    """

    host_names: tuple[str, ...]
    machines: tuple[tuple[str, tuple[int, ...]], ...]


class Hosts:
    """The hosts of a session, in the order of their workers.

    Args:
        hosts: may be replaced by others with the same workers, after they were lost.
        absent: the workers of hosts that are not there yet.
    """

    def __init__(self, hosts: Iterable[WorkerHost], absent: Iterable[int] = ()) -> None:
        self.hosts: list[Any] = list(hosts)
        self.absent = frozenset(absent)

    def release(self) -> None:
        """Let others have the hosts, when all are closed."""

    @property
    def of_worker(self) -> dict[int, WorkerHost]:
        """The host of every worker."""
        return {worker: host for host in self.hosts for worker in host.workers}

    @property
    def places(self) -> Places:
        """Where all are now."""
        found = [host for _, host in sorted(self.of_worker.items(), key=lambda pair: pair[0])]
        machines = tuple((host.machine, host.cores) for host in found)
        return Places(tuple(host.name for host in found), machines)
