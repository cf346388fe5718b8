"""What a host does for its controller, without Ray: the inside of its actor, and the other side."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, GetTimeoutError

from drlpp.errors import HostLost, RunFailure, StorageFailure
from drlpp.runtime.hosts import host_keeper
from drlpp.runtime.hosts.host import Answered, Ended, Event
from drlpp.runtime.hosts.host_keeper import HostFacts, HostKeeper
from drlpp.runtime.hosts.on_ray import line
from drlpp.runtime.hosts.on_ray.host import Contact, RayHost
from drlpp.runtime.ipc.file_chunks import CHUNK_BYTES, place_of
from drlpp.runtime.ipc.protocol import Collect, Failed, RunResult, WorkerSpec
from drlpp.runtime.ipc.time_limits import TimeLimits


class Reference:
    """What Ray gives for a call: an answer that comes."""

    def __init__(self, answer: Future[Any]) -> None:
        self._answer = answer

    def future(self) -> Future[Any]:
        return self._answer

    @staticmethod
    def get(reference: "Reference", timeout: float) -> Any:
        """As ``ray.get``."""
        try:
            return reference._answer.result(timeout)
        except TimeoutError:
            raise GetTimeoutError from None


class Method:
    """A method of an actor, in the thread of its group."""

    def __init__(self, group: ThreadPoolExecutor, call: Callable[..., Any]) -> None:
        self._group, self._call = group, call

    def remote(self, *given: Any) -> Reference:
        return Reference(self._group.submit(self._call, *given))


class ActorHere:
    """As HostActor, in threads of this process."""

    def __init__(self, keeper: HostKeeper) -> None:
        orders, events, clock = (ThreadPoolExecutor(1) for _ in range(3))
        self.order = Method(orders, lambda _, name, *given: keeper.carry_out(name, given))
        self.close = Method(orders, lambda: keeper.carry_out("close", ()))
        self.next_events = Method(events, keeper.next_events)
        self.seconds = Method(clock, lambda: time.perf_counter() + AHEAD)


AHEAD = 1000.0
FACTS = HostFacts("/elsewhere", "far", "another machine", (0,))


HOSTS: list[RayHost] = []


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(line.ray, "get", Reference.get)
    yield
    while HOSTS:
        host = HOSTS.pop()
        host._closed = True
        host._line.close()
        # Or it would ask Ray itself, which would then start a cluster.
        host._line._listening.join(30)
        assert not host._line._listening.is_alive()


@pytest.fixture
def keeper() -> Iterator[HostKeeper]:
    keeper = HostKeeper([1], "far", "127.0.0.1", None, TimeLimits())
    yield keeper
    keeper.carry_out("close", ())
    assert not Path(keeper.facts.folder).exists()


def host_of(
    actor: Any,
    folder: Path,
    machine: str = "this one",
    limits: TimeLimits | None = None,
    seek: Callable[[], Contact | None] = lambda: None,
) -> RayHost:
    limits = limits or TimeLimits()
    contact = Contact(actor, FACTS, "127.0.0.1")
    HOSTS.append(RayHost(contact, [1], "far", folder, machine, limits, seek=seek))
    return HOSTS[-1]


def events_of(host: RayHost, count: int = 1) -> list[Event]:
    found: list[Event] = []
    give_up = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < give_up
        found += host.events([w for w in host.waitables() if w.poll(0.1)])
    return found


def spec(host: RayHost) -> WorkerSpec:
    return WorkerSpec(1, 0, "127.0.0.1", host.open_store())


def test_files_travel_in_chunks_and_stay_in_the_folder(keeper: HostKeeper, tmp_path: Path) -> None:
    host = host_of(ActorHere(keeper), tmp_path)
    for size in (0, 5, CHUNK_BYTES, 2 * CHUNK_BYTES + 1):
        path = tmp_path / "file"
        path.write_bytes(os.urandom(size))
        content = path.read_bytes()
        host.publish(path)
        path.unlink()
        assert host.fetch("file").read_bytes() == content
        assert (Path(keeper.facts.folder) / "file").read_bytes() == content
        host.remove("file")
    with pytest.raises(RunFailure, match=r"host far: '../file' is not the name of a file"):
        host.fetch("../file")
    for name in ("..", "/etc/passwd", "a/b", ""):
        with pytest.raises(OSError, match="not the name of a file"):
            place_of(tmp_path, name)


def test_a_chunk_that_is_missing_spoils_the_file(keeper: HostKeeper) -> None:
    assert keeper.carry_out("write", ("file", 0, b"first", False)) is None
    answer = keeper.carry_out("write", ("file", 9, b"third", True))
    assert isinstance(answer, RunFailure)
    assert "a chunk is missing before byte 9" in str(answer)
    assert isinstance(keeper.carry_out("read", ("file", 0)), RunFailure)


def test_workers_start_end_and_are_replaced(keeper: HostKeeper, tmp_path: Path) -> None:
    host = host_of(ActorHere(keeper), tmp_path)
    host.start([spec(host)])
    host.finish_start()
    (process,) = host.process_ids
    assert host.is_whole()
    os.kill(process, signal.SIGKILL)
    (ended,) = events_of(host)
    assert isinstance(ended, Ended)
    assert ended.worker == 1
    assert not host.is_whole()
    host.kill()
    host.start([spec(host)])
    host.finish_start()
    assert host.process_ids != [process]
    # What the first said late is nobody's any more.
    keeper._reports.put((1, ended))
    late = Answered(1, Failed("ModelError", "of the second"))
    keeper._reports.put((host._generation, late))
    assert events_of(host) == [late]
    host.close()


def test_a_command_that_finds_no_room_is_an_answer(keeper: HostKeeper, tmp_path: Path) -> None:
    """Long commands travel by file, and somebody may have removed the folder of these."""
    host = host_of(ActorHere(keeper), tmp_path)
    host.start([spec(host)])
    host.finish_start()
    shutil.rmtree(keeper.facts.folder)
    host.send(1, Collect("x" * 4096, in_flight=False))
    (event,) = events_of(host)
    assert isinstance(event, Answered)
    assert isinstance(event.answer, Failed)
    assert isinstance(event.answer.error, StorageFailure)
    assert "host far: " in str(event.answer.error)
    host.close()


@pytest.mark.parametrize("machine", ["this one", FACTS.machine])
def test_times_of_another_clock_become_ours(
    keeper: HostKeeper, tmp_path: Path, machine: str
) -> None:
    begin = time.perf_counter()
    shift = AHEAD if machine == FACTS.machine else 0.0
    host = host_of(ActorHere(keeper), tmp_path, machine)
    result = RunResult(
        times=[(begin + AHEAD, begin + AHEAD + 2)],
        losses={},
        scores={},
        peak_memory_bytes=0,
        bytes_sent=0,
        predictions=[],
    )
    keeper._reports.put((0, Answered(1, result)))
    (event,) = events_of(host)
    assert isinstance(event, Answered)
    assert isinstance(event.answer, RunResult)
    assert event.answer.times == [pytest.approx((begin + shift, begin + shift + 2), abs=0.5)]


def test_a_worker_that_does_not_die_is_told(
    keeper: HostKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def does_not_die() -> None:
        raise HostLost("worker 1 (process 7) does not end")

    host = host_of(ActorHere(keeper), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(keeper._host, "kill", does_not_die)
        with pytest.raises(HostLost, match=r"host far: worker 1 \(process 7\) does not end"):
            host.kill()
    host.close()


@pytest.mark.parametrize("silent", ["events", "orders"])
def test_a_silent_host_is_lost(keeper: HostKeeper, tmp_path: Path, silent: str) -> None:
    """Whether nothing comes of its own accord, or no answer to an order."""
    actor = ActorHere(keeper)
    never: Future[Any] = Future()
    if silent == "events":
        actor.next_events = Method(ThreadPoolExecutor(1), keeper.next_events)
        actor.next_events.remote = lambda *_: Reference(never)  # type: ignore[method-assign]
    else:
        actor.order.remote = lambda *_: Reference(never)  # type: ignore[method-assign]
    limits = TimeLimits(host_silence_seconds=1, fork_seconds=1)
    host = host_of(actor, tmp_path, limits=limits)
    if silent == "events":
        (news,) = host.waitables()
        assert news.poll(30)
    with pytest.raises(HostLost, match=r"host far cannot be reached: no (sign of life|answer)"):
        host.kill()
    # From then on at once, whoever asks.
    for ask in (host.waitables, lambda: host.events([]), host.check, lambda: host.start([])):
        with pytest.raises(HostLost, match="host far cannot be reached"):
            ask()


def test_a_dead_actor_wakes_who_waits(keeper: HostKeeper, tmp_path: Path) -> None:
    actor = ActorHere(keeper)
    dies: Future[Any] = Future()
    actor.next_events.remote = lambda *_: Reference(dies)  # type: ignore[method-assign]
    host = host_of(actor, tmp_path)
    (news,) = host.waitables()
    threading.Timer(0.2, dies.set_exception, [ActorDiedError()]).start()
    assert news.poll(30)
    with pytest.raises(HostLost, match="the process that keeps its workers has ended"):
        host.events([news])


def test_a_lost_host_goes_on_where_it_is_found(keeper: HostKeeper, tmp_path: Path) -> None:
    actor = ActorHere(keeper)
    dies: Future[Any] = Future()
    actor.next_events.remote = lambda *_: Reference(dies)  # type: ignore[method-assign]
    found: list[Contact] = []
    host = host_of(actor, tmp_path, seek=lambda: found.pop() if found else None)
    larger = replace(FACTS, machine="a larger one", cores=(4, 5))
    found.append(Contact(ActorHere(keeper), larger, "127.0.0.2"))
    # Nobody looks for another place while it is there.
    assert not host.has_returned(1)
    (news,) = host.waitables()
    dies.set_exception(ActorDiedError())
    assert news.poll(30)
    elsewhere, found[:] = found[:], []
    assert not host.has_returned(1)
    time.sleep(0.1)
    assert not host.has_returned(1)
    found += elsewhere
    give_up = time.monotonic() + 30
    while not host.has_returned(1):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    with pytest.raises(HostLost):
        host.check()
    host.rejoin()
    assert (host.address, host.is_whole(), host.has_returned(1)) == ("127.0.0.2", False, False)
    assert (host.machine, host.cores) == ("a larger one", (4, 5))
    (tmp_path / "file").write_bytes(b"content")
    host.publish(tmp_path / "file")
    assert (Path(keeper.facts.folder) / "file").read_bytes() == b"content"
    host.start([spec(host)])
    host.finish_start()
    (process,) = host.process_ids
    os.kill(process, signal.SIGKILL)
    (ended,) = events_of(host)
    assert isinstance(ended, Ended)
    host.close()


def test_a_host_that_is_left_alone_gives_up_unless_ray_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = TimeLimits(host_silence_seconds=0.1, lease_seconds=0.2)
    keeper = HostKeeper([1], "far", "127.0.0.1", str(tmp_path), limits)
    known = True
    monkeypatch.setattr(host_keeper, "known_to_ray", lambda _seconds: known)
    keeper.next_events()
    assert not keeper.is_abandoned()
    keeper._heard -= 1
    # The controller is stopped, and has another lease.
    assert not keeper.is_abandoned()
    known = False
    assert not keeper.is_abandoned()
    keeper._heard -= 1
    assert keeper.is_abandoned()
