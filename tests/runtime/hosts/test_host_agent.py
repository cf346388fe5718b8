"""What a controller and a host agent say to each other."""

import multiprocessing
import os
import pickle
import shutil
import socket
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from drlpp.errors import HostLost, RunFailure, StorageFailure
from drlpp.runtime.hosts import host_agent as host_agent_module
from drlpp.runtime.hosts.host import Answered
from drlpp.runtime.hosts.host_protocol import (
    Clock,
    Handshake,
    Reply,
    Shutdown,
    place_of,
)
from drlpp.runtime.hosts.remote_host import RemoteHost
from drlpp.runtime.ipc.commands import Collect, Failed, Release, RunResult
from drlpp.runtime.ipc.store import open_store
from drlpp.runtime.ipc.time_limits import TimeLimits
from drlpp.runtime.ipc.worker_spec import StoreAddress, WorkerSpec
from tests.support.programs.hosted import hosted


def test_times_of_another_clock_become_ours(tmp_path: Path) -> None:
    ahead = 1000.0
    ours, theirs = multiprocessing.Pipe()
    hello = Handshake(1, 1, "far", "10.0.0.2", "another machine", (0,))
    host = RemoteHost(hello, ours, "far", tmp_path, shares_clock=False)

    def keep() -> None:
        while True:
            number, request = theirs.recv()
            if not isinstance(request, Clock):
                return
            # A reply that comes late is not taken for this one.
            theirs.send(Reply(number - 1, seconds=5.0))
            theirs.send(Reply(number, seconds=time.perf_counter() + ahead))

    host_agent = threading.Thread(target=keep)
    host_agent.start()
    begin = time.perf_counter()
    theirs.send(
        Answered(
            1,
            RunResult(
                times=[(begin + ahead, begin + ahead + 2)],
                losses={},
                scores={},
                peak_memory_bytes=0,
                bytes_sent=0,
                predictions=[(begin + ahead + 1, begin + ahead + 2)],
            ),
        )
    )
    (event,) = host.events([ours])
    ours.send((0, None))
    host_agent.join(10)
    assert isinstance(event, Answered)
    assert isinstance(event.answer, RunResult)
    assert event.answer.times == [pytest.approx((begin, begin + 2), abs=0.5)]
    assert event.answer.predictions == [pytest.approx((begin + 1, begin + 2), abs=0.5)]


def test_a_large_answer_and_a_file_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides send more than the network holds between them."""
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    hello = Handshake(1, 1, "far", "10.0.0.2", "another machine", (0,))
    host_agent = host_agent_module.HostAgent(hello, theirs)
    serving = threading.Thread(target=host_agent.serve)
    serving.start()
    assert ours.recv() == hello
    host = RemoteHost(hello, ours, "far", tmp_path, shares_clock=True)
    folder = Path(host.open(None))
    path = tmp_path / "chunk"
    path.write_bytes(os.urandom(2**24))
    long = Answered(1, Failed("ModelError", "x" * 2**24))
    answers = [[long]]
    monkeypatch.setattr(
        host_agent_module.LocalHost, "events", lambda *_: answers.pop() if answers else []
    )
    host.publish(path)
    assert (folder / "chunk").read_bytes() == path.read_bytes()
    assert host.events([]) == [long]
    assert (tmp_path / host.fetch("chunk").name).read_bytes() == path.read_bytes()
    ours.send_bytes(pickle.dumps((0, Shutdown(3))))
    serving.join(30)
    assert not serving.is_alive()
    assert not folder.exists()


def test_a_worker_that_does_not_die_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host agent goes on, and ends as the controller wants it to."""
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    hello = Handshake(1, 1, "far", "10.0.0.2", "another machine", (0,))
    codes: list[int] = []
    host_agent = host_agent_module.HostAgent(hello, theirs)
    serving = threading.Thread(target=lambda: codes.append(host_agent.serve()))
    serving.start()
    ours.recv()
    host = RemoteHost(hello, ours, "far", tmp_path, shares_clock=True)

    def does_not_die(_host: object) -> None:
        raise HostLost("worker 1 (process 7) does not end")

    monkeypatch.setattr(host_agent_module.LocalHost, "kill", does_not_die)
    folder = Path(host.open(None))
    for end in (host.kill, host.close):
        with pytest.raises(RunFailure, match=r"host far: worker 1 \(process 7\) does not end"):
            end()
    assert not folder.exists()
    host.open(None)
    ours.send_bytes(pickle.dumps((0, Shutdown(3))))
    serving.join(30)
    assert codes == [3]
    assert "rank 1: worker 1 (process 7) does not end" in capsys.readouterr().err


def test_a_host_agent_waits_as_long_as_the_session_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    hello = Handshake(1, 1, "far", "10.0.0.2", "another machine", (0,))
    serving = threading.Thread(target=host_agent_module.HostAgent(hello, theirs).serve)
    serving.start()
    ours.recv()
    seen: list[TimeLimits] = []

    class Noting(host_agent_module.LocalHost):
        def __init__(self, *arguments: Any, limits: TimeLimits) -> None:
            super().__init__(*arguments, limits=limits)
            seen.append(limits)

    monkeypatch.setattr(host_agent_module, "LocalHost", Noting)
    limits = TimeLimits(end_seconds=3)
    RemoteHost(hello, ours, "far", tmp_path, limits, shares_clock=True).open(None)
    assert seen == [limits]
    ours.send_bytes(pickle.dumps((0, Shutdown(0))))
    serving.join(30)
    assert not serving.is_alive()


def test_names_of_files_stay_in_the_folder(tmp_path: Path) -> None:
    assert place_of(tmp_path, "model") == tmp_path / "model"
    for name in ("../model", "..", "/etc/passwd", "a/b", ""):
        with pytest.raises(OSError, match="not the name of a file"):
            place_of(tmp_path, name)


def test_a_command_that_finds_no_room_and_an_interrupt_are_told(tmp_path: Path) -> None:
    """Long commands travel by file, and somebody may have removed the folder of these."""
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    interrupts, pressed = multiprocessing.Pipe(duplex=False)
    hello = Handshake(1, 1, "far", "127.0.0.1", "another machine", (0,))
    host_agent = host_agent_module.HostAgent(hello, theirs, interrupts)
    serving = threading.Thread(target=host_agent.serve)
    serving.start()
    ours.recv()
    host = RemoteHost(hello, ours, "far", tmp_path, shares_clock=True)
    for _ in range(2):
        # The terminal sends it to the host agent, and torchrun does once more.
        pressed.send_bytes(b"Ctrl-C")
    host_folder = Path(host.open(None))
    store = open_store("127.0.0.1")
    group = hosted(host)
    host.start([WorkerSpec(1, 0, "127.0.0.1", StoreAddress("127.0.0.1", store.port, "token"))])
    host.finish_start()
    with pytest.raises(KeyboardInterrupt, match="on host far"):
        group.command({1: Release()})
    host.start([WorkerSpec(1, 0, "127.0.0.1", StoreAddress("127.0.0.1", store.port, "token"))])
    host.finish_start()
    shutil.rmtree(host_folder)
    with pytest.raises(StorageFailure, match=r"host far: .*cannot be written"):
        group.command({1: Collect("x" * 4096, in_flight=False)})
    group.close()
    ours.send_bytes(pickle.dumps((0, Shutdown(0))))
    serving.join(30)
    assert not serving.is_alive()


def test_a_host_agent_without_a_session_says_so(tmp_path: Path) -> None:
    ours, theirs = (Connection(end.detach()) for end in socket.socketpair())
    hello = Handshake(1, 1, "far", "127.0.0.1", "another machine", (0,))
    serving = threading.Thread(target=host_agent_module.HostAgent(hello, theirs).serve)
    serving.start()
    ours.recv()
    host = RemoteHost(hello, ours, "far", tmp_path, shares_clock=True)
    host.start([])
    with pytest.raises(RunFailure, match="host far: no session has been opened here"):
        host.finish_start()
    ours.send_bytes(pickle.dumps((0, Shutdown(0))))
    serving.join(30)
    assert not serving.is_alive()
