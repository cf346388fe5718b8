"""Where workers run: this machine, or another that an actor of Ray looks after.

A :class:`~drlpp.runtime.session.worker_group.WorkerGroup` gives every host the same orders and
hears the same events of it, wherever it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

from drlpp.errors import HostLost, RunFailure
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
_Answer = TypeVar("_Answer")


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


class Hosts:
    """The hosts of a session: all, those that it counts on, and which of these is lost.

    A host that is lost stays so, and whatever is asked of any host raises that again, until its
    workers are given up.

    Args:
        hosts: in the order of their workers.
        given_up: workers that the session does without, such as those of hosts that are missing.

    Attributes:
        hosts: may be replaced by others with the same workers, after they were lost.
        given_up: as in the arguments.
        lost: how a host was lost.
    """

    def __init__(self, hosts: Iterable[WorkerHost], given_up: Iterable[int] = ()) -> None:
        self.hosts: list[Any] = list(hosts)
        self.given_up = set(given_up)
        self.lost: HostLost | None = None

    def close(self) -> None:
        """End all workers; others may have the hosts after that."""
        try:
            self._end(self.hosts, methodcaller("close"))
        finally:
            self.release()

    def release(self) -> None:
        """Let others have the hosts, when all are closed."""

    @property
    def of_worker(self) -> dict[int, WorkerHost]:
        """The host of every worker, in the order of these."""
        found = {worker: host for host in self.hosts for worker in host.workers}
        return dict(sorted(found.items(), key=lambda pair: pair[0]))

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers that run now."""
        return [process for host in self.hosts for process in host.process_ids]

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of the workers that were not given up, in order."""
        return tuple(worker for worker in self.of_worker if worker not in self.given_up)

    @property
    def present(self) -> list[WorkerHost]:
        """The hosts that have one of them."""
        return [host for host in self.hosts if not self.given_up.issuperset(host.workers)]

    def give_up(self, workers: Collection[int]) -> None:
        """Do without these workers until they are taken back; their host may be lost."""
        before = self.present
        self.given_up |= self.of_worker.keys() & set(workers)
        # A host that is lost answers after a long time, or never.
        self._end(self.present if self.lost else before, methodcaller("kill"))
        self.lost = None

    def take_back(self, files: Sequence[Path]) -> tuple[int, ...]:
        """Count on the workers again that were given up and can be started; return their numbers.

        Their hosts get the files. The workers of all hosts are ended.
        """
        returned = [
            worker for worker in self.given_up if self.of_worker[worker].has_returned(worker)
        ]
        there: list[int] = []
        for host in dict.fromkeys(self.of_worker[worker] for worker in sorted(returned)):
            with suppress(HostLost):
                host.rejoin()
                for file in files:
                    host.publish(file)
                there += [worker for worker in returned if worker in host.workers]
        if there:
            self.kill()
            self.given_up -= set(there)
        return tuple(sorted(there))

    def ask(self, worker: int, what: Callable[[WorkerHost], _Answer]) -> _Answer:
        """Return what the host of a worker gives; raise HostLost if it, or another one, is lost."""
        return self._ask(self.of_worker[worker], what)

    def ask_all(self, what: Callable[[WorkerHost], _Answer]) -> list[_Answer]:
        """Return what every present host gives, likewise."""
        return [self._ask(host, what) for host in self.present]

    def _ask(self, host: WorkerHost, what: Callable[[WorkerHost], _Answer]) -> _Answer:
        if self.lost is not None:
            raise self.lost
        try:
            return what(host)
        except HostLost as error:
            error.workers = error.workers or frozenset(host.workers)
            self.lost = error
            raise

    def kill(self) -> None:
        """End the workers of all present hosts; whoever asks next is told if one is lost."""
        self._end(self.present, methodcaller("kill"))

    def _end(self, hosts: Iterable[WorkerHost], how: Callable[[WorkerHost], None]) -> None:
        for host in hosts:
            try:
                how(host)
            except RunFailure as error:
                # What it was asked before may have failed; the others have to end as well.
                lost = error if isinstance(error, HostLost) else HostLost(str(error))
                lost.workers = lost.workers or frozenset(host.workers)
                self.lost = self.lost or lost
