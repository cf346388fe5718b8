"""Hosts of this machine that can be lost and come back, as far as a session can tell.

Each forks its workers here, so nothing of a network is in it: what is timed on them is what a
session does once it knows.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest import mock

from drlpp.errors import HostLost
from drlpp.runtime.hosts.host import Hosts, LocalHost, WorkerHost
from drlpp.runtime.ipc.protocol import WorkerSpec
from drlpp.runtime.ipc.time_limits import TimeLimits
from drlpp.runtime.session import session as session_module


class FailingHost(LocalHost):
    """Its worker 2, or the next of ``failing``, ends as soon as it has been started, so often."""

    failures = 0
    failing = cycle([2])

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        super().start(posts)
        numbers = [post.worker for post in posts]
        worker = next(self.failing)
        if worker in numbers and self.failures:
            self.failures -= 1
            os.kill(self.process_ids[numbers.index(worker)], signal.SIGKILL)


def _while_there(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method of a host raise while the host is lost."""

    def checked(host: LosableHost, *given: Any) -> Any:
        host.check()
        return method(host, *given)

    return checked


class LosableHost(LocalHost):
    """Its workers end and it answers nothing between :meth:`lose` and :meth:`return_`."""

    is_gone = False
    start = _while_there(LocalHost.start)
    send = _while_there(LocalHost.send)
    events = _while_there(LocalHost.events)
    publish = _while_there(LocalHost.publish)
    fetch = _while_there(LocalHost.fetch)

    def lose(self) -> None:
        """End all workers without a word, and answer nothing from now on; from any thread."""
        self.is_gone = True
        for process_id in self.process_ids:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)

    def return_(self) -> None:
        """Be there again, without any worker."""
        self.is_gone, self.has_returned = False, True

    def check(self) -> None:
        """Raise where it is lost."""
        if self.is_gone:
            raise HostLost(f"host {self.name} cannot be reached")

    def kill(self) -> None:
        """End its workers."""
        super().kill()
        self.check()


class LosableHosts:
    """The hosts of the sessions that begin in :meth:`used`.

    Args:
        workers: how many each host has.
        kind: makes a host.
        missing: hosts that are lost at the beginning of a session.

    Attributes:
        hosts: of the last session.
    """

    def __init__(
        self,
        workers: Sequence[int],
        kind: Callable[..., WorkerHost] = LosableHost,
        missing: Sequence[int] = (),
    ) -> None:
        self._workers = workers
        self._kind = kind
        self.missing = missing
        self.hosts: tuple[Any, ...] = ()

    def _place(self, workers: int, folder: Path, limits: TimeLimits, **_: Any) -> Hosts:
        assert workers == sum(self._workers)
        first, hosts = 0, []
        for number, count in enumerate(self._workers):
            own = range(first, first + count)
            hosts.append(self._kind(own, folder, f"host-{number}"))
            first += count
        self.hosts = tuple(hosts)
        for number in self.missing:
            self.hosts[number].lose()
            self.hosts[number].lost = HostLost("it is missing")
        return Hosts(hosts)

    def lose(self) -> None:
        """Lose the last host."""
        self.hosts[-1].lose()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let sessions that begin in the block run their workers here."""
        with mock.patch.object(session_module, "hosts_for", self._place):
            yield
