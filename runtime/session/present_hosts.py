"""The hosts of a session: which of their workers there are, what they say, and their files.

Every host has a copy of the session's folder, or the folder itself. A host that is lost stays so,
and whatever is asked of it raises that again, until its workers are given up.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, suppress
from multiprocessing import connection as mp_connection
from operator import methodcaller
from pathlib import Path
from typing import TypeVar

from drlpp.errors import HostLost, RunFailure
from drlpp.io.disk_errors import reporting_disk_errors
from drlpp.runtime.hosts.host import Event, WorkerHost
from drlpp.runtime.hosts.session_hosts import PlaceWorkers
from drlpp.runtime.ipc.session_folder import SessionFolder
from drlpp.runtime.ipc.tensor_file import write_tree
from drlpp.runtime.ipc.time_limits import TimeLimits

_LOOK_SECONDS = 1.0
_Answer = TypeVar("_Answer")


class PresentHosts:
    """The hosts of a session that have workers which have not been given up.

    Args:
        place: says where the workers run.
        workers: how many there are.
        limits: of the session.

    Attributes:
        folder: of the session, on the controller's host; removed by :meth:`close`.
        all: the hosts, those without a worker too.
        lost: how a host was lost whose workers have not been given up.
        longest_silence_seconds: without a word from any worker while one was waited for.
        stops: how often this process was stopped (Ctrl-Z) while it waited for workers.
    """

    def __init__(self, place: PlaceWorkers, workers: int, limits: TimeLimits) -> None:
        with telling_of_temporary_files():
            self._folder = SessionFolder()
        self.folder = Path(self._folder.name)
        self.all = place(workers, self.folder, limits)
        self._given_up = set(self.all.absent)
        self._lent = 0
        self.lost: HostLost | None = None
        self._silence_seconds = self.longest_silence_seconds = 0.0
        self.stops = 0

    # Who there is

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of all workers that there are, in order."""
        return tuple(sorted(self.all.of_worker.keys() - self._given_up))

    @property
    def hosts(self) -> tuple[WorkerHost, ...]:
        """The hosts that have one of them."""
        return tuple(host for host in self.all.hosts if self.of(host))

    def of(self, host: WorkerHost) -> list[int]:
        """Return the workers of a host that there are."""
        return [worker for worker in host.workers if worker not in self._given_up]

    @property
    def missing_hosts(self) -> str:
        """Which hosts have workers that are not there, in a clause; empty where there is none."""
        missing = {host.name: None for host in self.all.hosts if self.of(host) != [*host.workers]}
        if not missing:
            return ""
        be = "host {} is" if len(missing) == 1 else "hosts {} are"
        return f"{be.format(', '.join(missing))} missing or in use"

    def give_up(self, workers: Collection[int]) -> None:
        """Do without these workers, whose host may be lost, until they are taken back."""
        before = self.hosts
        self._given_up |= self.all.of_worker.keys() & set(workers)
        # A host that is lost answers after a long time, or never.
        self.end(
            [host for host in before if self.of(host) or self.lost is None], methodcaller("kill")
        )
        self.lost = None

    def take_back(self, files: Iterable[str]) -> tuple[int, ...]:
        """Count on the workers again that were given up and can be started; return their numbers.

        Those of a host that was there only for a moment are not among them. The workers of all
        hosts are ended.

        Args:
            files: of the session, that the others were given when they began.
        """
        returned = [w for w in self._given_up if self.all.of_worker[w].has_returned(w)]
        there: list[int] = []
        for host in dict.fromkeys(self.all.of_worker[worker] for worker in sorted(returned)):
            with suppress(HostLost):
                host.rejoin()
                for file in files:
                    host.publish(self.folder / file)
                there += [worker for worker in returned if worker in host.workers]
        if there:
            self.end(self.hosts, methodcaller("kill"))
            self._given_up -= set(there)
        return tuple(sorted(there))

    # What they are asked, and say

    def ask(self, host: WorkerHost, what: Callable[..., _Answer], *given: object) -> _Answer:
        """Return what a method of a host gives.

        Raises:
            HostLost: it, or another host, is lost.
        """
        if self.lost is not None:
            raise self.lost
        try:
            return what(*given)
        except HostLost as error:
            error.workers = error.workers or frozenset(host.workers)
            self.lost = error
            raise

    def end(self, hosts: Iterable[WorkerHost], how: Callable[[WorkerHost], None]) -> None:
        """End the workers of hosts, also if one is lost, which whoever asks next is told."""
        for host in hosts:
            try:
                how(host)
            except RunFailure as error:
                # What it was asked before may have failed; the others have to end as well.
                lost = error if isinstance(error, HostLost) else HostLost(str(error))
                lost.workers = lost.workers or frozenset(host.workers)
                self.lost = self.lost or lost

    def events(self, patience: float) -> list[Event]:
        """Return what has happened on the hosts; nothing if nothing has in ``patience`` seconds.

        While this process is stopped, and its workers with it, nobody waits: that counts as no
        silence.

        Raises:
            HostLost: a host does not answer.
        """
        left = patience
        while True:
            waitables = [w for host in self.hosts for w in self.ask(host, host.waitables)]
            seconds = max(0.0, min(left, _LOOK_SECONDS))
            begin = time.monotonic()
            ready = mp_connection.wait(waitables, seconds)
            waited = time.monotonic() - begin
            if waited > seconds + TimeLimits.stopped_seconds:
                self.stops += 1
                waited = seconds
            self._silence_seconds += waited
            left -= waited
            events = [e for host in self.hosts for e in self.ask(host, host.events, ready)]
            if events or left <= 0:
                return events

    def forget_silence(self) -> None:
        """Let what nobody has said so far count for nothing."""
        self._silence_seconds = 0.0

    def note_silence(self) -> None:
        """Somebody has said something: note how long nobody had."""
        self.longest_silence_seconds = max(self.longest_silence_seconds, self._silence_seconds)
        self._silence_seconds = 0.0

    # Their files

    def write(self, file: str, content: object) -> None:
        """Write a tree of tensors for all hosts.

        Raises:
            StorageFailure: there is no room for it.
            HostLost: a host does not answer.
        """
        path = self.folder / file
        with telling_of_temporary_files():
            # Workers may still have the old file mapped, which has to stay as it is.
            path.unlink(missing_ok=True)
            write_tree(path, content)
            self.publish(file)

    def lend(self, path: Path) -> str:
        """Publish a file of the user; return its name in the folder."""
        self._lent += 1
        file = f"checkpoint-{self._lent}"
        with telling_of_temporary_files():
            (self.folder / file).symlink_to(path.absolute())
            self.publish(file)
        return file

    def publish(self, file: str) -> None:
        """Give every host its copy of a file that is in the folder here."""
        for host in self.hosts:
            self.ask(host, host.publish, self.folder / file)

    def remove(self, file: str) -> None:
        """Remove a file here and on every host; processes that have it open can read on."""
        (self.folder / file).unlink(missing_ok=True)
        for host in self.hosts if self.lost is None else ():
            self.ask(host, host.remove, file)

    def fetch(self, worker: int, file: str) -> Path:
        """Return the file that a worker wrote into the folder of its host."""
        host = self.all.of_worker[worker]
        with telling_of_temporary_files():
            return self.ask(host, host.fetch, file)

    def close(self) -> None:
        """End all workers and remove the files; another session may have the hosts after that."""
        try:
            self.end(self.all.hosts, methodcaller("close"))
        finally:
            self.all.release()
            self._folder.cleanup()


def telling_of_temporary_files() -> AbstractContextManager[None]:
    """Report storage errors of the session's own files; an observer's files have their own."""
    return reporting_disk_errors(Path(tempfile.gettempdir()))
