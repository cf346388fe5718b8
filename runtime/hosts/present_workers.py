"""Which workers of a session there are: all of its hosts', until one is lost and given up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from drlpp.errors import HostLost, RunFailure
from drlpp.runtime.hosts.host import WorkerHost
from drlpp.runtime.hosts.session_hosts import Hosts

_Answer = TypeVar("_Answer")


class PresentWorkers:
    """The workers that a session starts and commands, by number.

    A host all of whose workers were given up is not asked for anything but whether it has returned.

    Args:
        hosts: of the session.

    Attributes:
        lost: how a host was lost whose workers have not been given up.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._all = hosts
        self._given_up = set(hosts.absent)
        self.lost: HostLost | None = None

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

    @property
    def missing_hosts(self) -> str:
        """Which hosts have workers that are not there, in a clause; empty where there is none."""
        missing = dict.fromkeys(h.name for h in self._all.hosts if self.of(h) != tuple(h.workers))
        if not missing:
            return ""
        be = "host {} is" if len(missing) == 1 else "hosts {} are"
        return f"{be.format(', '.join(missing))} missing or in use"

    def give_up(self, workers: Collection[int]) -> None:
        """Do without these workers, whose host may be lost, until they are taken back."""
        before = self.hosts
        self._given_up |= self._all.of_worker.keys() & set(workers)
        # A host that is lost answers after a long time, or never.
        left = [host for host in before if self.of(host) or self.lost is None]
        self.end(left, lambda host: host.kill())
        self.lost = None

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
    def noting_lost_hosts(self) -> Iterator[None]:
        """Remember that a host is lost; raise that again instead of waiting for it."""
        if self.lost is not None:
            raise self.lost
        try:
            yield
        except HostLost as error:
            self.lost = error
            raise

    def end(self, hosts: Iterable[WorkerHost], end: Callable[[WorkerHost], None]) -> None:
        """End the workers on every host, also if one is lost; the next start raises that."""
        for host in hosts:
            try:
                asked(host, end, host)
            except HostLost as error:
                self.lost = self.lost or error
            except RunFailure as error:
                # What it was asked before may have failed; the others have to end as well.
                self.lost = self.lost or HostLost(str(error), host.workers)


def asked(host: WorkerHost, what: Callable[..., _Answer], *given: Any) -> _Answer:
    """Return what a host answers; if it is lost, that error names its workers."""
    try:
        return what(*given)
    except HostLost as error:
        error.workers = error.workers or frozenset(host.workers)
        raise
