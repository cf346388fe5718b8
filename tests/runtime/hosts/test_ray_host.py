"""What a host does for its controller, without Ray: the inside of its actor, and the other side."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError

from drlpp.errors import HostLost, InvalidInput, RunFailure, StorageFailure
from drlpp.runtime.hosts.host import Answered, Ended, Event
from drlpp.runtime.hosts.on_ray import line as module
from drlpp.runtime.hosts.on_ray.actor import host_actor
from drlpp.runtime.hosts.on_ray.host import RayHost
from drlpp.runtime.hosts.on_ray.keeper import HostFacts, HostKeeper
from drlpp.runtime.hosts.on_ray.line import ActorLine
from drlpp.runtime.hosts.on_ray.nodes import HostPlan, RayNode
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
        return Reference(self._group.submit(self._called, *given))

    def _called(self, *given: Any) -> Any:
        try:
            return self._call(*given)
        except Exception as error:
            raise RayTaskError("order", "", error) from None


AHEAD = 1000.0
FACTS = HostFacts("/elsewhere", "another machine", (0,))


class ActorHere:
    """As HostActor, in threads of this process."""

    def __init__(self, keeper: HostKeeper, facts: HostFacts = FACTS) -> None:
        orders, events, clock = (ThreadPoolExecutor(1) for _ in range(3))
        self.versions = Method(orders, host_actor()().versions)
        self.open = Method(orders, lambda *_: facts)
        self.order = Method(orders, lambda name, *given: getattr(keeper, name)(*given))
        self.close = Method(orders, keeper.close)
        self.next_events = Method(events, keeper.next_events)
        self.seconds = Method(clock, lambda: time.perf_counter() + AHEAD)


class ActorThatDies(ActorHere):
    """As HostActor, until somebody says how it has died."""

    def __init__(self, keeper: HostKeeper) -> None:
        super().__init__(keeper)
        self.dies: Future[Any] = Future()
        self.next_events.remote = lambda *_: Reference(self.dies)  # type: ignore[method-assign]


LINES: list[ActorLine] = []


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module.ray, "get", Reference.get)
    # It would start a cluster of this process's own.
    monkeypatch.setattr(module.ray, "kill", lambda actor: None)
    yield
    while LINES:
        line = LINES.pop()
        line.lose("the test has ended")
        line.give_back()
    give_up = time.monotonic() + 30
    while any(thread.name.endswith("(_listen)") for thread in threading.enumerate()):
        # It would ask Ray itself, which would then start a cluster.
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.fixture
def keeper() -> Iterator[HostKeeper]:
    keeper = HostKeeper([1], "far", "127.0.0.1", None, TimeLimits())
    yield keeper
    keeper.close()
    assert not Path(keeper.facts.folder).exists()


def line_to(actor: Any, limits: TimeLimits | None = None, address: str = "127.0.0.1") -> ActorLine:
    node = RayNode("id", address, 1, (), {"CPU": 1, "GPU": 0})
    LINES.append(ActorLine(HostPlan("far", (1,), "CPU", node), limits or TimeLimits(), str))
    LINES[-1]._use(actor)
    LINES[-1].open(None)
    return LINES[-1]


def events_of(host: RayHost) -> list[Event]:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        if found := host.events([w for w in host.waitables() if w.poll(0.1)]):
            return found
    raise AssertionError


def started(host: RayHost) -> int:
    host.start([WorkerSpec(1, 0, "127.0.0.1", host.open_store())])
    host.finish_start()
    (process,) = host.process_ids
    assert host.is_whole()
    return process


def test_files_travel_in_chunks_and_stay_in_the_folder(keeper: HostKeeper, tmp_path: Path) -> None:
    host = RayHost(line_to(ActorHere(keeper)), tmp_path)
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
    host.line.ask("write", "file", 0, b"first", False)
    with pytest.raises(RunFailure, match=r"host far: .* a chunk is missing before byte 9"):
        host.line.ask("write", "file", 9, b"third", True)
    with pytest.raises(RunFailure, match="No such file"):
        host.fetch("file")


def test_workers_start_end_and_are_replaced(keeper: HostKeeper, tmp_path: Path) -> None:
    host = RayHost(line_to(ActorHere(keeper)), tmp_path)
    process = started(host)
    os.kill(process, signal.SIGKILL)
    (ended,) = events_of(host)
    assert (type(ended), ended.worker) == (Ended, 1)
    host.kill()
    assert not host.is_whole()
    assert started(host) != process
    # What the first said late is nobody's any more, nor what was said to it.
    keeper.send(1, 1, Collect("x", in_flight=False))
    assert not host.line.news.poll(2)
    keeper._reports.put((1, ended))
    late = Answered(1, Failed("ModelError", "of the second"))
    keeper._reports.put((host._generation, late))
    assert events_of(host) == [late]
    keeper._reports.put((host._generation, ended))
    assert host.line.news.poll(30)
    assert not host.is_whole()
    host.close()


def test_a_command_that_finds_no_room_is_an_answer(keeper: HostKeeper, tmp_path: Path) -> None:
    """Long commands travel by file, and somebody may have removed the folder of these."""
    host = RayHost(line_to(ActorHere(keeper)), tmp_path)
    started(host)
    shutil.rmtree(keeper.facts.folder)
    host.send(1, Collect("x" * 4096, in_flight=False))
    (event,) = events_of(host)
    assert isinstance(event, Answered)
    assert isinstance(event.answer, Failed)
    assert isinstance(event.answer.error, StorageFailure)
    assert "host far: " in str(event.answer.error)


@pytest.mark.parametrize("same", [True, False])
def test_times_of_another_clock_become_ours(keeper: HostKeeper, tmp_path: Path, same: bool) -> None:
    begin = time.perf_counter()
    facts = keeper.facts if same else FACTS
    host = RayHost(line_to(ActorHere(keeper, facts)), tmp_path)
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
    shift = AHEAD if same else 0.0
    assert event.answer.times == [pytest.approx((begin + shift, begin + shift + 2), abs=0.5)]


def test_what_goes_wrong_on_a_host_is_told_with_its_name(
    keeper: HostKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def does_not_die() -> None:
        raise HostLost("worker 1 (process 7) does not end")

    host = RayHost(line_to(ActorHere(keeper)), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(keeper._host, "kill", does_not_die)
        with pytest.raises(HostLost, match=r"host far: worker 1 \(process 7\) does not end"):
            host.kill()
    other = ActorHere(keeper)
    other.versions.remote = lambda: Reference(_done("torch 9.9"))  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match=r"host far has torch 9.9, and this one drlpp .*, torch"):
        line_to(other)


def _done(answer: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(answer)
    return future


@pytest.mark.parametrize("silent", ["events", "orders"])
def test_a_silent_host_is_lost(keeper: HostKeeper, tmp_path: Path, silent: str) -> None:
    """Whether nothing comes of its own accord, or no answer to an order."""
    actor = ActorThatDies(keeper) if silent == "events" else ActorHere(keeper)
    limits = TimeLimits(host_silence_seconds=1, fork_seconds=1)
    host = RayHost(line_to(actor, limits), tmp_path)
    if silent == "events":
        (news,) = host.waitables()
        assert news.poll(30)
    else:
        actor.order.remote = lambda *_: Reference(Future())  # type: ignore[method-assign]
    with pytest.raises(HostLost, match=r"host far cannot be reached: no (sign of life|answer)"):
        host.kill()
    # From then on at once, whoever asks.
    for ask in (host.waitables, lambda: host.events([]), host.check, lambda: host.start([])):
        with pytest.raises(HostLost, match="host far cannot be reached"):
            ask()


def test_a_lost_host_goes_on_where_it_is_found(keeper: HostKeeper, tmp_path: Path) -> None:
    actor = ActorThatDies(keeper)
    found: list[ActorLine] = []
    host = RayHost(line_to(actor), tmp_path, lambda lost: found.pop() if found else None)
    # Nobody looks for another place while it is there.
    assert not host.has_returned(1)
    (news,) = host.waitables()
    actor.dies.set_exception(ActorDiedError())
    assert news.poll(30)
    with pytest.raises(HostLost, match="the process that keeps its workers has ended"):
        host.events([news])
    assert not host.has_returned(1)
    time.sleep(0.1)
    assert not host.has_returned(1)
    larger = HostFacts("/elsewhere", "a larger one", (4, 5))
    found.append(line_to(ActorHere(keeper, larger), address="127.0.0.2"))
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
    os.kill(started(host), signal.SIGKILL)
    assert isinstance(events_of(host)[0], Ended)
    host.close()
