"""The hosts of a session: which are there, what is asked of them, and the files that they share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, ExitStack, suppress
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import TypeVar

from drlpp.errors import HostLost, InvalidInput, RunFailure
from drlpp.io.files import reporting_disk_errors
from drlpp.runtime.hosts.host import WorkerHost
from drlpp.runtime.hosts.session_hosts import PlaceWorkers
from drlpp.runtime.ipc.protocol import MODEL_FILE, SAMPLES_FILE
from drlpp.runtime.ipc.session_folder import SessionFolder
from drlpp.runtime.ipc.time_limits import TimeLimits

_Answer = TypeVar("_Answer")


class PresentHosts:
    """Hosts of workers, which are numbered from 0, and a folder of files that all of them have.

    Once a host is lost, whatever is asked of any host raises that again, until its workers are
    given up.

    Attributes:
        folder: of the session's files, on this host; every host has it, or a copy.
        hosts: all, in the order of their workers; those whose workers were given up too.
        given_up: workers that the session does without.
        lost: how a host was lost.
    """

    def __init__(self, workers: int, place: PlaceWorkers, time_limits: TimeLimits) -> None:
        self.time_limits = time_limits
        self.lost: HostLost | None = None
        self._closed = False
        self._names = 0
        with _telling_of_temporary_files():
            self._folder = SessionFolder()
        self.folder = Path(self._folder.name)
        self._placed = place(workers, self.folder, time_limits)
        self.hosts = self._placed.hosts
        self.given_up = {w for host in self.hosts if host.lost for w in host.workers}

    def close(self) -> None:
        """End the workers and remove the files; another session may have the hosts after that."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as last:
            last.callback(self._folder.cleanup)
            last.callback(self._placed.release)
            self._end(self.hosts, methodcaller("close"))

    def check_open(self) -> None:
        """Raise an error if the session has been closed."""
        if self._closed:
            raise InvalidInput("this session is closed; begin another one")

    @property
    def of_worker(self) -> dict[int, WorkerHost]:
        """The host of every worker, in the order of these."""
        found = {worker: host for host in self.hosts for worker in host.workers}
        return dict(sorted(found.items(), key=itemgetter(0)))

    @property
    def host_of(self) -> dict[int, str]:
        """The name of every worker's host."""
        return {worker: host.name for worker, host in self.of_worker.items()}

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers that run now; on another machine, as it counts them."""
        return [process for host in self.hosts for process in host.process_ids]

    @property
    def present(self) -> tuple[int, ...]:
        """The numbers of the workers that there are: all but those that were given up."""
        return tuple(worker for worker in self.of_worker if worker not in self.given_up)

    @property
    def _present_hosts(self) -> list[WorkerHost]:
        return [host for host in self.hosts if not self.given_up.issuperset(host.workers)]

    def check_present(self, workers: Collection[int], what: str) -> None:
        """Refuse what is on workers that were given up."""
        if absent := set(workers) - set(self.present):
            raise InvalidInput(
                f"{what} is on worker {min(absent)}, which was given up; there are workers "
                f"{', '.join(map(str, self.present))}"
            )

    def give_up(self, workers: Collection[int]) -> None:
        """Do without these workers from now on, and without their host if it has no others."""
        before = self._present_hosts
        self.given_up |= self.of_worker.keys() & set(workers)
        # A host that is lost answers after a long time, or never.
        self._end(self._present_hosts if self.lost else before, methodcaller("kill"))
        self.lost = None

    def take_back(self) -> tuple[int, ...]:
        """Count on workers again that were given up and have returned; return their numbers.

        All workers are replaced then, so that a placement has to be deployed again.
        """
        there: list[int] = []
        for host in {self.of_worker[worker]: None for worker in sorted(self.given_up)}:
            host.is_missed = host.lost is not None
            if host.has_returned:
                with suppress(HostLost):
                    for file in (MODEL_FILE, SAMPLES_FILE):
                        host.publish(self.folder / file)
                    host.has_returned = False
                    there += host.workers
        if there:
            self.kill()
            self.given_up -= set(there)
        return tuple(sorted(there))

    def ask_all(self, what: Callable[[WorkerHost], _Answer]) -> list[_Answer]:
        """Return what every present host gives; raise HostLost if one is lost."""
        return [self.ask(host, what) for host in self._present_hosts]

    def ask(self, host: WorkerHost, what: Callable[[WorkerHost], _Answer]) -> _Answer:
        """Return what a host gives; raise HostLost if it, or another one, is lost."""
        if self.lost is not None:
            raise self.lost
        try:
            with _telling_of_temporary_files():
                return what(host)
        except HostLost as error:
            error.workers = error.workers or frozenset(host.workers)
            self.lost = error
            raise

    def kill(self) -> None:
        """End the workers of all present hosts; whoever asks next is told if one is lost."""
        self._end(self._present_hosts, methodcaller("kill"))

    def _end(self, hosts: Iterable[WorkerHost], how: Callable[[WorkerHost], None]) -> None:
        for host in hosts:
            try:
                how(host)
            except RunFailure as error:
                # What it was asked before may have failed; the others have to end as well.
                lost = error if isinstance(error, HostLost) else HostLost(str(error))
                lost.workers = lost.workers or frozenset(host.workers)
                self.lost = self.lost or lost

    # Files of the session

    def new_name(self, purpose: str) -> str:
        """Return a name that the session never uses again."""
        self._names += 1
        return f"{purpose}-{self._names}"

    def publish(self, file: str, write: Callable[[Path], object]) -> str:
        """Write a file into the folder, and give every host its copy; return the file's name."""
        path = self.folder / file
        with _telling_of_temporary_files():
            # Workers may still have the old file mapped, which has to stay as it is.
            path.unlink(missing_ok=True)
            write(path)
        self.ask_all(lambda host: host.publish(path))
        return file

    def remove_file(self, file: str) -> None:
        """Remove a file here and on every host; processes that have it open can read on."""
        (self.folder / file).unlink(missing_ok=True)
        if self.lost is None:
            self.ask_all(lambda host: host.remove(file))


def _telling_of_temporary_files() -> AbstractContextManager[None]:
    """Report storage errors of the session's own files; an observer's files have their own."""
    return reporting_disk_errors(Path(tempfile.gettempdir()))
