"""Strangers at every port of a program: they say garbage, half a message slowly, or nothing."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_LISTENING = "0A"
_CONNECT_SECONDS = 2.0
_HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
# What a TCPStore takes for a client's greeting, before the number of a query.
_GREETING_OF_STORES = b"\x00" + struct.pack("<I", 0x3C85F7CE)


def listening_ports(processes: Iterable[int]) -> dict[int, str]:
    """TCP ports that any of these processes listens on, with the address, as the system writes it.

    ``0100007F`` is 127.0.0.1, ``00000000`` everywhere.
    """
    own = {socket_ for process in processes for socket_ in _sockets_of(process)}
    found = {}
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in own:
                    address, _, port = fields[1].rpartition(":")
                    found[int(port, 16)] = address
    return found


def _sockets_of(process: int) -> list[str]:
    found = []
    with suppress(OSError):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(link))
    return [name for name in found if name.startswith("socket:")]


def utterances(chance: random.Random) -> list[bytes]:
    """What strangers say: nothing, text, noise, and messages to a store that announce too much."""
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
