"""Somebody between a controller and a host agent who does not know the token can do nothing."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError

import pytest

from drlpp.runtime.ipc.handshake import SignedConnection, greet_controller, welcome_host_agent

TOKEN = b"a secret of at least sixteen bytes"
ADDRESS = "10.0.0.1", 4000
GREETING_BYTES, ANSWER_BYTES, PROOF_BYTES = 52, 64, 32


@dataclass
class Between:
    """Somebody who stands between a host agent and a controller, and passes on what he likes."""

    host_agent: socket.socket
    controller: socket.socket
    host_agents_end: Future[SignedConnection]
    controllers_end: Future[tuple[int, SignedConnection]]

    def forward(self) -> tuple[bytes, bytes]:
        """The whole handshake, unchanged; what the host agent has said."""
        greeting = _exactly(self.host_agent, GREETING_BYTES)
        self.controller.sendall(greeting)
        self.host_agent.sendall(_exactly(self.controller, ANSWER_BYTES))
        proof = _exactly(self.host_agent, PROOF_BYTES)
        self.controller.sendall(proof)
        return greeting, proof


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = peer.recv(count, socket.MSG_WAITALL)
    assert len(data) == count
    return data


@contextmanager
def between(
    host_agents_token: bytes = TOKEN,
    host_agents_address: tuple[str, int] = ADDRESS,
    rank: int = 1,
    patience: float = 20,
) -> Iterator[Between]:
    """A host agent and a controller that are about to meet."""
    host_agent, to_host_agent = socket.socketpair()
    controller, to_controller = socket.socketpair()
    for end in (to_host_agent, to_controller):
        end.settimeout(20)
    with ThreadPoolExecutor() as threads:
        try:
            yield Between(
                to_host_agent,
                to_controller,
                threads.submit(
                    greet_controller, host_agent, host_agents_address, host_agents_token, rank
                ),
                threads.submit(welcome_host_agent, controller, ADDRESS, TOKEN, patience),
            )
        finally:
            # Whoever still waits gives up.
            for end in (to_host_agent, to_controller):
                end.close()


def test_both_ends_meet_and_talk() -> None:
    with between(rank=7) as man:
        man.forward()
        rank, at_controller = man.controllers_end.result(20)
        at_host_agent = man.host_agents_end.result(20)
        assert rank == 7
        for message in (b"first", b"", b"x" * 100_000):
            at_host_agent.send_bytes(message)
            man.controller.sendall(_exactly(man.host_agent, 4 + 32 + len(message)))
            assert at_controller.recv_bytes() == message
        at_controller.send_bytes(b"back")
        assert not at_host_agent.poll(0)
        man.host_agent.sendall(_exactly(man.controller, 4 + 32 + 4))
        assert at_host_agent.poll(20)
        assert at_host_agent.recv_bytes() == b"back"


@pytest.mark.parametrize("meddling", ["change", "repeat", "leave out", "turn around", "make"])
def test_what_is_said_after_the_handshake_is_signed(meddling: str) -> None:
    """Who forwarded every byte of the handshake cannot say anything."""
    with between() as man:
        man.forward()
        _, at_controller = man.controllers_end.result(20)
        at_host_agent = man.host_agents_end.result(20)
        at_controller.send_bytes(b"one")
        at_controller.send_bytes(b"two")
        one, two = (_exactly(man.controller, 39) for _ in range(2))
        ends = [at_host_agent]
        match meddling:
            case "change":
                said = [one[:-1] + b"E"]
            case "repeat":
                said = [one, one]
            case "leave out":
                said = [two]
            case "make":
                said = [one[:4] + bytes(32) + b"one"]
            case _:
                said, ends = [one], [at_controller]
        for message in said:
            (man.host_agent if ends[0] is at_host_agent else man.controller).sendall(message)
        for _ in said[1:]:
            ends[0].recv_bytes()
        with pytest.raises(OSError, match="somebody in between"):
            ends[0].recv_bytes()


def test_a_controller_without_the_token_learns_nothing() -> None:
    with between(host_agents_token=b"another secret") as man:
        man.controller.sendall(_exactly(man.host_agent, GREETING_BYTES))
        man.host_agent.sendall(_exactly(man.controller, ANSWER_BYTES))
        with pytest.raises(AuthenticationError):
            man.host_agents_end.result(20)
        # No proof, before or after.
        man.host_agent.setblocking(False)
        with pytest.raises(BlockingIOError):
            man.host_agent.recv(1)
        man.controller.close()
        with pytest.raises(AuthenticationError):
            man.controllers_end.result(20)


def test_a_proof_holds_for_one_address_and_one_rank() -> None:
    with between(host_agents_address=("10.0.0.1", 4001)) as man:
        man.controller.sendall(_exactly(man.host_agent, GREETING_BYTES))
        man.host_agent.sendall(_exactly(man.controller, ANSWER_BYTES))
        with pytest.raises(AuthenticationError):
            man.host_agents_end.result(20)
    with between(rank=1) as man:
        greeting = _exactly(man.host_agent, GREETING_BYTES)
        man.controller.sendall(greeting[:16] + (2).to_bytes(4, "big") + greeting[20:])
        man.host_agent.sendall(_exactly(man.controller, ANSWER_BYTES))
        with pytest.raises(AuthenticationError):
            man.host_agents_end.result(20)


def test_a_proof_holds_once_and_in_one_direction() -> None:
    with between() as man:
        greeting, proof = man.forward()
        man.controllers_end.result(20)
    with between() as man:
        man.controller.sendall(greeting)
        _exactly(man.controller, ANSWER_BYTES)
        man.controller.sendall(proof)
        with pytest.raises(AuthenticationError):
            man.controllers_end.result(20)
    with between() as man:
        man.controller.sendall(greeting)
        answer = _exactly(man.controller, ANSWER_BYTES)
        man.controller.sendall(answer[32:])
        with pytest.raises(AuthenticationError):
            man.controllers_end.result(20)


def test_one_connection_of_the_controller_does_not_prove_another() -> None:
    """The same greeting on both, and what one of them answers as the proof of the other."""
    with between() as one, between() as other:
        greeting = _exactly(one.host_agent, GREETING_BYTES)
        one.controller.sendall(greeting)
        other.controller.sendall(greeting)
        answer = _exactly(one.controller, ANSWER_BYTES)
        _exactly(other.controller, ANSWER_BYTES)
        one.host_agent.sendall(answer)
        other.controller.sendall(_exactly(one.host_agent, PROOF_BYTES))
        with pytest.raises(AuthenticationError):
            other.controllers_end.result(20)


@pytest.mark.parametrize("speech", [b"GET / HTTP/1.1\r\n\r\n" * 9, b"\xff" * 5000, b"", b"short"])
def test_garbage_is_no_greeting(speech: bytes) -> None:
    with between() as man:
        man.controller.sendall(speech)
        man.controller.shutdown(socket.SHUT_WR)
        with pytest.raises((OSError, EOFError)):
            man.controllers_end.result(20)


def test_a_stranger_who_speaks_slowly_is_given_up() -> None:
    """However often it says something."""
    with between(patience=0.5) as man:
        for _ in range(GREETING_BYTES - 1):
            with suppress(TimeoutError):
                assert isinstance(man.controllers_end.exception(0.05), TimeoutError)
                return
            man.controller.sendall(b"d")
        pytest.fail("it was listened to for as long as it spoke")
