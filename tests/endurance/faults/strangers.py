"""Strangers at every port of a program: they say garbage, half a message slowly, or nothing."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

import psutil

_CONNECT_SECONDS = 2.0
_HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
# What a TCPStore takes for a client's greeting, before the number of a query.
_GREETING_OF_STORES = b"\x00" + struct.pack("<I", 0x3C85F7CE)


def listening_ports(processes: Iterable[int]) -> dict[int, str]:
    """Return the address and TCP port of all that these processes listen on.

    The address 0.0.0.0 is everywhere.
    """
    found = {}
    for process in processes:
        with suppress(psutil.Error):
            for connection in psutil.Process(process).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[connection.laddr.port] = connection.laddr.ip
    return found


def utterances(chance: random.Random) -> list[bytes]:
    """Return what strangers say: nothing, text, noise, store messages that announce too much."""
    said = [b"", _HTTP, b"\x00" * 4096, b"\xff" * 4096]
    said += [chance.randbytes(count) for count in (7, 10**5)]
    said += [struct.pack("<Q", number) for number in (2**31, 2**63)]
    for query in range(20):
        begin = _GREETING_OF_STORES + bytes([query])
        said.append(begin + struct.pack("<Q", 2**62))
        said.append(begin + struct.pack("<Q", 5) + b"words" + struct.pack("<Q", 2**40))
    return said


def bother(processes: Iterable[int], chance: random.Random) -> list[socket.socket]:
    """Go to every port of the processes and say everything there.

    Returns:
        Connections that stay open, half of all, until they are closed.
    """
    kept = []
    for port in listening_ports(processes):
        for words in utterances(chance):
            with suppress(OSError):
                stranger = socket.create_connection(("127.0.0.1", port), _CONNECT_SECONDS)
                kept.append(stranger)
                stranger.sendall(words)
                if chance.random() < 0.5:
                    kept.pop().close()
    return kept
