"""What a pool makes of hosts that say nothing."""

from collections.abc import Container, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from drlpp.errors import HostLost, RunFailure, TrialTimeout
from drlpp.runtime.hosts.host import Event, Post, WorkerHost
from drlpp.runtime.ipc.commands import Release
from drlpp.runtime.session.pool import WorkerPool


class SilentHost(WorkerHost):
    """Has a worker that never answers; to ``kill`` it may be too much for the network."""

    workers = (0,)
    name = address = "127.0.0.1"

    def __init__(self, connection: Connection, *, cut_off: bool) -> None:
        self._connection = connection
        self._cut_off = cut_off

    process_ids = property(lambda self: [1])  # type: ignore[assignment]

    def start(self, posts: Sequence[Post]) -> None: ...

    def finish_start(self) -> None: ...

    def is_whole(self) -> bool:
        return True

    def send(self, worker: int, command: object) -> None: ...

    def waitables(self) -> list[Connection]:
        return [self._connection]

    def events(self, ready: Container[object]) -> list[Event]:
        return []

    def publish(self, path: Path) -> None: ...

    def remove(self, file: str) -> None: ...

    def fetch(self, file: str) -> Path:
        return Path(file)

    def kill(self) -> None:
        if self._cut_off:
            raise HostLost("host elsewhere cannot be reached")

    def close(self) -> None: ...


@pytest.fixture
def connection() -> Iterator[Connection]:
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours


@pytest.mark.parametrize(("cut_off", "failure"), [(False, TrialTimeout), (True, HostLost)])
def test_a_host_that_is_cut_off_is_told_as_such_by_its_silent_workers(
    connection: Connection, tmp_path: Path, cut_off: bool, failure: type[RunFailure]
) -> None:
    pool = WorkerPool([SilentHost(connection, cut_off=cut_off)], [1.0], [None], tmp_path)
    with pytest.raises(failure):
        pool.command({0: Release()}, timeout_seconds=0.05)
