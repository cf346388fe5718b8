"""How a controller and a host agent know each other, and that nobody speaks in the other's name.

    host agent                                         controller
      │  who it is (rank), a fresh nonce                │
      │ ──────────────────────────────────────────────▶ │
      │                  a fresh nonce, proof           │
      │ ◀────────────────────────────────────────────── │   the controller proves itself first
      │  proof                                          │
      │ ──────────────────────────────────────────────▶ │
      │ ◀══════════════ signed messages ══════════════▶ │

A proof is an HMAC by a secret that is derived from the token for one role, one rank and one address
of a controller, of both nonces: none can be used in the other direction, for another host agent, at
another address, or a second time. Nor can what is said after that: every message is signed by a key
of this connection and direction, with its number. Until both proofs have been checked, only bytes
of fixed lengths are read, and nothing is unpickled before its signature was.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Literal

Role = Literal["controller", "host agent"]
Address = tuple[str, int]

_GREETING = struct.Struct("!16sI32s")
_MAGIC = b"drlpp remote 2\n\0"
_NONCE_BYTES = _PROOF_BYTES = 32
_LONGEST_BYTES = 2**30


class SignedConnection:
    """A connection whose messages nobody in between can make, change, repeat or leave out.

    It does not hide them. What waits for a :class:`Connection` can wait for it.

    Args:
        connection: that carries the messages.
        sends: the key for what is said here.
        receives: the key for what is heard.
    """

    def __init__(self, connection: Connection, sends: bytes, receives: bytes) -> None:
        self._connection = connection
        self._sends = sends
        self._receives = receives
        self._sent = self._received = 0

    def fileno(self) -> int:
        """Return the file descriptor, which is readable when there is a message."""
        return self._connection.fileno()

    def poll(self, seconds: float = 0.0) -> bool:
        """Return whether there is a message, or an end, in time."""
        return self._connection.poll(seconds)

    def send_bytes(self, message: bytes) -> None:
        """Send a message."""
        self._connection.send_bytes(_signature(self._sends, self._sent, message) + message)
        self._sent += 1

    def recv_bytes(self, longest_bytes: int = _LONGEST_BYTES) -> bytes:
        """Wait for the next message.

        Raises:
            EOFError: the other side has gone.
            OSError: the connection broke, the message is longer than that, or not what the other
                side said.
        """
        received = self._connection.recv_bytes(_PROOF_BYTES + longest_bytes)
        message = received[_PROOF_BYTES:]
        signature = _signature(self._receives, self._received, message)
        if not hmac.compare_digest(received[:_PROOF_BYTES], signature):
            raise OSError("somebody in between has changed what was sent")
        self._received += 1
        return message

    def close(self) -> None:
        """Close this end."""
        self._connection.close()


def _signature(key: bytes, number: int, message: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + message, "sha256")


class _Secrets:
    """What follows from the token for one attempt to connect.

    Args:
        token: that both sides know.
        address: of the controller, as this side knows it.
        rank: of the host agent.
        nonces: of the host agent and of the controller, one behind the other.
    """

    def __init__(self, token: bytes, address: Address, rank: int, nonces: bytes) -> None:
        self._token = token
        self._place = f"rank {rank} of {address[0]}:{address[1]}"
        self._nonces = nonces

    def _secret(self, role: Role, purpose: str) -> bytes:
        secret = hmac.digest(self._token, f"{role} {purpose} {self._place}".encode(), "sha256")
        return hmac.digest(secret, self._nonces, "sha256")

    def proof(self, role: Role) -> bytes:
        """Return what only a process that knows the token can say in that role."""
        return self._secret(role, "proves")

    def signed(self, peer: socket.socket, role: Role) -> SignedConnection:
        """Return the rest of the conversation, in which this side has that role."""
        peer.settimeout(None)
        other: Role = "host agent" if role == "controller" else "controller"
        sends, receives = (self._secret(one, "signs") for one in (role, other))
        return SignedConnection(Connection(peer.detach()), sends, receives)


def greet_controller(
    peer: socket.socket, address: Address, token: bytes, rank: int
) -> SignedConnection:
    """Prove to a controller who this host agent is, and wait for it for as long as it takes.

    Args:
        peer: connected to the controller; taken over.
        address: that was dialled.
        token: that both sides know.
        rank: of the host agent.

    Raises:
        AuthenticationError: whoever listens there does not know the token, and has learned nothing.
        OSError, EOFError: the connection broke.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    peer.settimeout(None)
    peer.sendall(_GREETING.pack(_MAGIC, rank, nonce))
    answer = _received(peer, _NONCE_BYTES + _PROOF_BYTES)
    shared = _Secrets(token, address, rank, nonce + answer[:_NONCE_BYTES])
    if not hmac.compare_digest(answer[_NONCE_BYTES:], shared.proof("controller")):
        raise AuthenticationError("the controller does not know the token")
    peer.sendall(shared.proof("host agent"))
    return shared.signed(peer, "host agent")


def welcome_host_agent(
    peer: socket.socket, address: Address, token: bytes, seconds: float
) -> tuple[int, SignedConnection]:
    """Prove to a host agent who this controller is, and check who the host agent is.

    Args:
        peer: that has connected; taken over.
        address: of the controller, where it listens.
        token: that both sides know.
        seconds: after which one that has not proven itself is given up.

    Returns:
        The rank of the host agent, and the connection to it.

    Raises:
        AuthenticationError: a host agent that does not know the token, or takes this side for one.
        OSError, EOFError: a stranger, or a connection that broke.
    """
    end = time.monotonic() + seconds
    magic, rank, theirs = _GREETING.unpack(_received(peer, _GREETING.size, end))
    if magic != _MAGIC:
        raise ConnectionAbortedError("a stranger")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    shared = _Secrets(token, address, rank, theirs + nonce)
    peer.sendall(nonce + shared.proof("controller"))
    try:
        proof = _received(peer, _PROOF_BYTES, end)
    except (EOFError, ConnectionError):
        raise AuthenticationError("the host agent did not believe the controller's proof") from None
    if not hmac.compare_digest(proof, shared.proof("host agent")):
        raise AuthenticationError("the host agent does not know the token")
    return rank, shared.signed(peer, "controller")


def _received(peer: socket.socket, count: int, end: float | None = None) -> bytes:
    """Return ``count`` bytes, however slowly they come, until ``end`` of ``time.monotonic``."""
    found = b""
    while len(found) < count:
        if end is not None:
            # Not 0, which means at once.
            peer.settimeout(max(0.001, end - time.monotonic()))
        piece = peer.recv(count - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found
