"""Who is on the network without the token runs no code, wherever it stands."""

import os
import pickle
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch.distributed as dist

from benchmarks.faults.strangers import listening_ports
from drlpp.capturing.capture import capture
from drlpp.errors import HostLost
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.runtime.hosts import launch as launch_module
from drlpp.runtime.hosts.launch import Controller, serve_host
from drlpp.runtime.hosts.launch_store import tell_port
from drlpp.runtime.hosts.launched_process import Launch
from drlpp.runtime.ipc.time_limits import TimeLimits
from tests.support.programs.launched import connect, launched

TOKEN = b"a secret" * 3
HOST_AGENT = Launch(rank=1, size=3, node=1, controller="127.0.0.1", token=TOKEN)


@dataclass
class _Trap:
    """Unpickled, it makes a file."""

    file: Path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


def _say(peer: socket.socket, data: bytes) -> None:
    peer.sendall(struct.pack("!i", len(data)) + data)


def _hear(peer: socket.socket) -> bytes:
    (length,) = struct.unpack("!i", peer.recv(4, socket.MSG_WAITALL))
    return peer.recv(length, socket.MSG_WAITALL)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)


def _join(one: socket.socket, other: socket.socket) -> list[threading.Thread]:
    """Let two hear each other until both have said all that they have to say for now."""
    routes = [
        threading.Thread(target=_pass_on, args=route) for route in ((one, other), (other, one))
    ]
    for route in routes:
        route.start()
    for route in routes:
        route.join()
    return routes


@contextmanager
def _stranger(ranks: tuple[int, ...], store: dist.Store) -> Iterator[list[socket.socket]]:
    """Write an own port into the store, and yield what host agents of these ranks say to it.

    They have to end by themselves, with the exit code of a failure.
    """
    codes: list[int] = []

    def keep(rank: int) -> None:
        codes.append(serve_host(replace(HOST_AGENT, rank=rank), store))

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        tell_port(store, server.getsockname()[1])
        host_agents = [threading.Thread(target=keep, args=(rank,)) for rank in ranks]
        for host_agent in host_agents:
            host_agent.start()
        peers = [server.accept()[0] for _ in ranks]
        for peer in peers:
            peer.settimeout(1)
        with suppress(OSError, struct.error):
            yield peers
        for peer in peers:
            peer.close()
        for host_agent in host_agents:
            host_agent.join(30)
            assert not host_agent.is_alive()
    assert codes == [1] * len(ranks)


def test_a_stranger_between_two_host_agents_runs_no_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It has one host agent answer what another asks, as multiprocessing's challenge allows."""
    trap = pickle.dumps(_Trap(tmp_path / "ran"))
    with _stranger((1, 2), dist.HashStore()) as (first, second):
        _say(first, b"#CHALLENGE#" + bytes(20))
        _hear(first)
        _say(first, b"#WELCOME#")
        _say(second, _hear(first))
        _say(first, _hear(second))
        _hear(first)
        for _ in range(2):
            _say(first, trap)
        while first.recv(4096):
            pass
    assert not (tmp_path / "ran").exists()
    for line in capfd.readouterr().err.splitlines():
        assert re.match("rank [12]: the controller at 127.0.0.1 ", line)


@pytest.mark.parametrize("ranks", [(1, 2), (1, 1)])
def test_host_agents_do_not_take_each_other_for_the_controller(
    ranks: tuple[int, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with _stranger(ranks, dist.HashStore()) as (first, second):
        _join(first, second)
        _say(first, bytes(32) + pickle.dumps(_Trap(tmp_path / "ran")))
    assert not (tmp_path / "ran").exists()
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2
    # Either may have come first, and only that one hears an answer of the right length.
    assert any(
        re.match("rank [12]: the controller at 127.0.0.1 has another DRLPP_TOKEN", line)
        and line.endswith("or is a stranger that torchrun's store names in its place")
        for line in said
    )


def test_a_host_agent_that_hears_itself_is_no_controller() -> None:
    with _stranger((1,), dist.HashStore()) as (host_agent,):
        host_agent.sendall(host_agent.recv(4096))
        host_agent.sendall(bytes(64))


@pytest.mark.parametrize(
    "place", [b"no port", b"0", b"-1", b"70000", "٣".encode(), b"\xff", b"9" * 5000, b""]
)
def test_whatever_stands_in_the_store_costs_a_line(
    place: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    class Written(dist.Store):
        def get(self, key: str) -> bytes:
            return place

    assert serve_host(HOST_AGENT, Written()) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "torchrun's store, which anyone can write to, has port" in line
    assert len(line) < 200


def test_a_relay_at_another_port_of_the_controllers_host_is_turned_away() -> None:
    """It forwards every byte to the real controller."""
    store = dist.HashStore()
    limits = TimeLimits(gathering_seconds=2)
    controller = Controller(replace(HOST_AGENT, rank=0, size=2, limits=limits), store)
    failures: list[HostLost] = []

    def gather() -> None:
        try:
            controller.host_agents()
        except HostLost as error:
            failures.append(error)

    gathering = threading.Thread(target=gather)
    try:
        with _stranger((1,), store) as (host_agent,), connect(controller) as to_controller:
            to_controller.settimeout(1)
            gathering.start()
            _join(host_agent, to_controller)
        gathering.join()
    finally:
        controller.close()
    assert "ranks [1] of 2 have not reached" in str(failures[0])
    assert "was turned away" in str(failures[0])


def test_strangers_that_keep_quiet_do_not_keep_a_session_from_its_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More of them than the controller deals with at a time, and before the host agents."""
    monkeypatch.setattr(launch_module, "_MOST_HANDSHAKES", 2)
    captured = capture(ModelReference.named("tests.support.models.small:forked"))
    placement = Placement.from_assignment([0] * len(captured.graph), (0, 0))
    strangers: list[socket.socket] = []

    def come(controller: Controller) -> None:
        strangers.extend(connect(controller) for _ in range(4))

    limits = TimeLimits(handshake_seconds=1)
    with (
        launched([0, 0], before_host_agents=come, limits=limits),
        ClusterSession(captured) as session,
    ):
        assert isinstance(session.measure(placement, 4), Measurement)
    for stranger in strangers:
        stranger.close()


def test_nothing_of_a_session_listens_beyond_this_machine() -> None:
    """Its store, and what every worker has for the others."""
    captured = capture(ModelReference.named("tests.support.models.small:forked"))
    with ClusterSession(captured, 2) as session:
        session.measure(Placement.from_assignment([0] * len(captured.graph), (0, 0)), 4)
        own = listening_ports([os.getpid(), *session.process_ids])
    assert len(own) >= 1 + 2
    assert set(own.values()) == {"127.0.0.1"}, own
