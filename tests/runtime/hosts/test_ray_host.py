"""What a host does for its controller, without Ray: the inside of its actor, and the other side."""

import asyncio
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError

from drlpp.errors import HostLost, InvalidInput, RunFailure, StorageFailure
from drlpp.runtime.hosts.host import Ended, Event
from drlpp.runtime.hosts.on_ray import host as module
from drlpp.runtime.hosts.on_ray.actor import HostKeeper
from drlpp.runtime.hosts.on_ray.host import RayHost
from drlpp.runtime.hosts.on_ray.nodes import HostPlan, RayNode
from drlpp.runtime.ipc.channel import open_store
from drlpp.runtime.ipc.protocol import Collect, Release, RunResult, WorkerSpec
from drlpp.runtime.ipc.time_limits import TimeLimits

AHEAD = 1000.0
"""Of the other host's clock, in seconds."""


class Method:
    """A method of an actor: a coroutine, on the actor's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[..., Any]) -> None:
        self._loop, self._call = loop, call

    def remote(self, *given: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self._call(*given), self._loop)


class Actor:
    """As HostActor, in a thread of this process; ``silent`` are methods that never answer."""

    def __init__(self, machine: str = "another machine") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.keeper = asyncio.run_coroutine_threadsafe(self._begin(), self.loop).result()
        self.machine = machine
        self.silent: set[str] = set()
        self.dies: Future[Any] = Future()
        self.open, self.call = Method(self.loop, self._open), Method(self.loop, self._answer)

    async def _begin(self) -> HostKeeper:
        return HostKeeper([1], "far", "127.0.0.1", None)

    async def _open(self, versions: str, *given: Any) -> Any:
        # Else a host without drlpp could not say so.
        assert b"drlpp" not in pickle.dumps(given)
        folder, here, _cores = self.keeper.facts
        return folder, self.machine or here, (4, 5)

    async def _answer(self, name: str, *given: Any) -> Any:
        if name in self.silent:
            return await asyncio.wrap_future(self.dies)
        found = await getattr(self.keeper, name)(*given)
        return found + AHEAD if name == "seconds" else found

    def end(self) -> None:
        asyncio.run_coroutine_threadsafe(self.keeper.order("close"), self.loop).result()
        assert not Path(self.keeper.facts[0]).exists()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


def get(reference: Future[Any], timeout: float) -> Any:
    """As ``ray.get``."""
    try:
        return reference.result(timeout)
    except ActorDiedError:
        raise
    except Exception as error:
        if not reference.done():
            raise GetTimeoutError from None
        raise RayTaskError("call", "", error) from None


HOSTS: list[RayHost] = []
STORES: list[object] = []


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Actor]:
    monkeypatch.setattr(module.ray, "get", get)
    monkeypatch.setattr(module.ray, "put", lambda content: content)
    monkeypatch.setattr(module, "placement_group", Mock())
    monkeypatch.setattr(module.ray, "get_runtime_context", Mock())
    actor = Actor()
    yield actor
    for host in HOSTS:
        host._closed = True
        host._listener.join(30)
    HOSTS.clear()
    STORES.clear()
    actor.end()


def host_of(actor: Any, folder: Path, limits: TimeLimits | None = None) -> RayHost:
    node = RayNode("id", "127.0.0.1", 1, (), {"CPU": 1, "GPU": 0})
    host = RayHost(HostPlan("far", (1,), "CPU", node), folder, limits or TimeLimits(), str)
    host._actor = actor
    host.open()
    HOSTS.append(host)
    return host


def events_of(host: RayHost) -> list[Event]:
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        if found := host.events([w for w in host.waitables() if w.poll(0.1)]):
            return found
    raise AssertionError


def started(host: RayHost) -> int:
    store, address = open_store("127.0.0.1")
    STORES.append(store)
    host.start([WorkerSpec(1, 0, "127.0.0.1", address)])
    host.finish_start()
    (process,) = host.process_ids
    return process


def test_files_travel(actor: Actor, tmp_path: Path) -> None:
    host = host_of(actor, tmp_path)
    path = tmp_path / "file"
    for size in (0, 5, 10**7):
        path.write_bytes(content := os.urandom(size))
        host.publish(path)
        path.unlink()
        assert host.fetch("file").read_bytes() == content
        assert (Path(host.folder) / "file").read_bytes() == content
        host.remove("file")
    with pytest.raises(RunFailure, match=r"host far: .*No such file"):
        host.fetch("file")
    shutil.rmtree(host.folder)
    with pytest.raises(RunFailure, match=r"host far: .*No such file"):
        host.publish(Path(__file__))


def test_workers_start_end_and_are_replaced(actor: Actor, tmp_path: Path) -> None:
    host = host_of(actor, tmp_path)
    process = started(host)
    os.kill(process, signal.SIGKILL)
    ((worker, ended),) = events_of(host)
    assert (worker, type(ended)) == (1, Ended)
    host.kill()
    assert not host.process_ids
    assert started(host) != process
    # What the first said late is nobody's any more.
    host.arrived.append((1, (1, ended)))
    host.send(1, Release())
    host.finish_send()
    assert events_of(host) == [(1, None)]
    host.kill()


def events_of_soon(host: RayHost) -> list[Event]:
    host._tell.send_bytes(b"events")
    return events_of(host)


def test_a_command_that_finds_no_room_is_told(actor: Actor, tmp_path: Path) -> None:
    """Long commands travel by file, and somebody may have removed the folder of these."""
    host = host_of(actor, tmp_path)
    started(host)
    shutil.rmtree(host.folder)
    host.send(1, Collect(storage="x" * 4096))
    with pytest.raises(StorageFailure, match="host far: "):
        host.finish_send()
    host.kill()


@pytest.mark.parametrize("same", [True, False])
def test_times_of_another_clock_become_ours(actor: Actor, tmp_path: Path, same: bool) -> None:
    begin = time.perf_counter()
    if same:
        actor.machine = ""
    host = host_of(actor, tmp_path)
    times = [(begin + AHEAD, begin + AHEAD + 2)]
    result = RunResult(times=times, losses={}, scores={}, peak_memory_bytes=0)
    host.arrived.append((0, (1, result)))
    ((_, answer),) = events_of_soon(host)
    assert isinstance(answer, RunResult)
    shift = AHEAD if same else 0.0
    assert answer.times == [pytest.approx((begin + shift, begin + shift + 2), abs=0.5)]


def test_what_goes_wrong_on_a_host_is_told_with_its_name(
    actor: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def does_not_die() -> None:
        raise HostLost("worker 1 (process 7) does not end")

    async def others(*_: Any) -> str:
        return "torch 9.9"

    host = host_of(actor, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(actor.keeper, "kill", does_not_die)
        with pytest.raises(HostLost, match=r"host far: worker 1 \(process 7\) does not end"):
            host.kill()
    actor.open = Method(actor.loop, others)
    with pytest.raises(InvalidInput, match=r"host far has torch 9.9, and this one drlpp .*, torch"):
        host_of(actor, tmp_path)


def test_a_connection_that_has_ended_loses_the_host(
    actor: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Mock(side_effect=ConnectionError("Ray client is not connected"))
    host, other = (host_of(actor, tmp_path) for _ in range(2))
    monkeypatch.setattr(module.ray, "put", ended)
    with pytest.raises(HostLost, match="host far cannot be reached: Ray says Ray client is not"):
        host.publish(Path(__file__))
    monkeypatch.setattr(actor, "close", Mock(remote=ended), raising=False)
    other.close()
    assert ended.call_count == 2


@pytest.mark.parametrize("silent", ["next_events", "order"])
def test_a_silent_host_is_lost(
    actor: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    """Whether nothing comes of its own accord, or no answer to an order."""
    actor.silent = {silent}
    host = host_of(actor, tmp_path, TimeLimits(host_silence_seconds=0.5))
    monkeypatch.setattr(TimeLimits, "host_start_seconds", 1.3)
    if silent == "next_events":
        assert host.waitables()[0].poll(30)
    with pytest.raises(HostLost, match=r"host far cannot be reached: no (sign of life|answer)"):
        host.kill()
    # From then on at once, whoever asks.
    for ask in (host.waitables, lambda: host.events([]), host.check, lambda: host.start([])):
        with pytest.raises(HostLost, match="host far cannot be reached"):
            ask()
    actor.dies.set_result([])


def test_a_host_that_has_died_is_lost(actor: Actor, tmp_path: Path) -> None:
    actor.silent = {"next_events"}
    host = host_of(actor, tmp_path)
    (news,) = host.waitables()
    actor.dies.set_exception(ActorDiedError())
    assert news.poll(30)
    with pytest.raises(HostLost, match="the process that keeps its workers has ended"):
        host.events([news])
    assert (host.machine, host.cores) == ("another machine", (4, 5))
