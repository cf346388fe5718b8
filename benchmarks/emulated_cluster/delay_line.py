"""Delays packets between network devices, where the kernel has no netem to do it.

    nsenter --net=SWITCH python delay_line.py PAIRS.json

Each pair names a ``port``, which leads to a host, and a ``tap`` that is made here for the
bridge. What comes in at one goes out at the other, ``in_seconds`` or ``out_seconds`` later, in
order. It prints a line when the devices are there, and ends when its standard input does::

    host ══[port]··in_seconds··▶[tap]──bridge
               ◀··out_seconds··

Packets are handed over as the kernel has them, up to 64 kB long, with the header that says how they
are to be cut and checked.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

# linux/if_tun.h
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO6 = 0x01, 0x02, 0x04
# linux/if_packet.h
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_ETH_P_ALL = 3
# asm/socket.h
_SO_RCVBUFFORCE = 33

_LONGEST_BYTES = 1 << 17
_BUFFER_BYTES = 1 << 26
_PACKETS_AT_ONCE = 64


@dataclass
class Direction:
    """What waits on its way from one device to the other."""

    source: int
    target: int
    seconds: float
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take(self) -> None:
        """Read what has come in."""
        with suppress(BlockingIOError):
            for _ in range(_PACKETS_AT_ONCE):
                packet = os.read(self.source, _LONGEST_BYTES)
                self.waiting.append((time.monotonic() + self.seconds, packet))

    def give(self) -> None:
        """Write what is due."""
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, packet = self.waiting.popleft()
            # A device that is down, or full, loses packets as a network does.
            with suppress(OSError):
                os.write(self.target, packet)


def forward(directions: Sequence[Direction]) -> None:
    """Forward packets until the standard input ends."""
    by_source = {direction.source: direction for direction in directions}
    control = sys.stdin.fileno()
    while True:
        due = min((d.waiting[0][0] for d in directions if d.waiting), default=None)
        left = None if due is None else max(0.0, due - time.monotonic())
        # Not epoll, whose timeouts are whole milliseconds.
        ready, _, _ = select.select([control, *by_source], [], [], left)
        if control in ready:
            return
        for source in ready:
            by_source[source].take()
        for direction in directions:
            direction.give()


def open_tap(name: str) -> int:
    """Open a new network device; what leaves through it is read here."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(tap, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO6)
    return tap


def open_port(name: str) -> socket.socket:
    """Open a socket that reads all that comes in at a device."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    port.setblocking(False)
    port.bind((name, _ETH_P_ALL))
    return port


def main(pairs_file: str) -> None:
    """Forward between all pairs."""
    # Whoever waits for the processor would delay everyone else.
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ports, directions = [], []
    for pair in json.loads(Path(pairs_file).read_text()):
        port, tap = open_port(pair["port"]), open_tap(pair["tap"])
        ports.append(port)
        directions.append(Direction(port.fileno(), tap, pair["in_seconds"]))
        directions.append(Direction(tap, port.fileno(), pair["out_seconds"]))
    print("ready", flush=True)
    forward(directions)


if __name__ == "__main__":
    main(*sys.argv[1:])
