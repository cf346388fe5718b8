"""Which workers of a session there are: all of its hosts', until some are given up."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from drlpp.errors import HostLost
from drlpp.runtime.hosts.host import WorkerHost
from drlpp.runtime.hosts.session_hosts import Hosts


class PresentWorkers:
    """The workers that a session starts and commands, by number.

    A host all of whose workers were given up is not asked for anything but whether it has returned.

    Args:
        hosts: of the session.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._all = hosts
        self._given_up: set[int] = set()

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of all that there are, in order."""
        return tuple(sorted(self._all.of_worker.keys() - self._given_up))

    @property
    def hosts(self) -> tuple[WorkerHost, ...]:
        """The hosts that have one of them."""
        return tuple(host for host in self._all.hosts if self.of(host))

    def of(self, host: WorkerHost) -> tuple[int, ...]:
        """Return the workers of a host that there are."""
        return tuple(worker for worker in host.workers if worker not in self._given_up)

    def give_up(self, workers: Collection[int]) -> None:
        """Do without these workers from now on."""
        self._given_up |= self._all.of_worker.keys() & set(workers)

    def returned(self) -> tuple[int, ...]:
        """Return the workers that were given up and can be started again."""
        return tuple(
            worker
            for worker in sorted(self._given_up)
            if self._all.of_worker[worker].has_returned(worker)
        )

    def take_back(self, workers: Collection[int]) -> None:
        """Count on these workers again."""
        self._given_up -= set(workers)


@contextmanager
def naming_workers_of(host: WorkerHost) -> Iterator[None]:
    """Let a loss of the host in the block name its workers."""
    try:
        yield
    except HostLost as error:
        error.workers = error.workers or frozenset(host.workers)
        raise
