"""What every accelerator of an emulated cluster measures for the self-check; run by ``torchrun``.

    torchrun … benchmarks/emulated_cluster/probe.py TASK.json RESULT.json

The task has ``ways``, each a sender, a receiver and bytes, and the ``addresses`` of all ranks.
Messages go over plain TCP, so that what is measured is the link and not a library.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path

import torch.distributed as dist

_ROUND_TRIPS = 100
_COMPUTING_SECONDS = 3.0
_CHUNK_BYTES = 1 << 20


def measure(
    ways: list[list[int]], addresses: list[str]
) -> tuple[dict[int, tuple[float, float]], tuple[float, float]]:
    """Measure what this rank sees.

    Args:
        ways: (sender, receiver, bytes) of the messages.
        addresses: of the hosts of all ranks.

    Returns:
        For the ways that it sends on, by their number: bytes per second, and seconds of a byte one
        way; and while all computed, the part of a core that it had, and the cores that the whole
        machine used.
    """
    rank = dist.get_rank()
    found = {}
    for number, (sender, receiver, bytes_) in enumerate(ways):
        endpoint: list[object] = [None]
        server = None
        if rank == receiver:
            server = socket.create_server((addresses[rank], 0))
            endpoint = [server.getsockname()]
        dist.broadcast_object_list(endpoint, src=receiver)
        if server is not None:
            with server, server.accept()[0] as connection:
                _answer(connection)
        elif rank == sender:
            with socket.create_connection(tuple(endpoint[0])) as connection:  # type: ignore[arg-type]
                found[number] = _send(connection, bytes_)
        dist.barrier()
    return found, _share_of_core()


def _send(connection: socket.socket, bytes_: int) -> tuple[float, float]:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _message(connection, bytes_ // 4)
    seconds = _message(connection, bytes_)
    delay = statistics.median(_message(connection, 1) for _ in range(_ROUND_TRIPS)) / 2
    return bytes_ / max(seconds - delay, 1e-9), delay


def _message(connection: socket.socket, bytes_: int) -> float:
    """Return the seconds until a message has been answered with a byte."""
    chunk = bytes(min(bytes_, _CHUNK_BYTES))
    begin = time.perf_counter()
    # One with its length, so that a message of one byte is one packet.
    left = bytes_ - 1
    connection.sendall(bytes_.to_bytes(8, "little") + b"x")
    while left > 0:
        left -= connection.send(chunk[: min(left, _CHUNK_BYTES)])
    connection.recv(1)
    return time.perf_counter() - begin


def _answer(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = bytearray(_CHUNK_BYTES)
    while header := connection.recv(8, socket.MSG_WAITALL):
        left = int.from_bytes(header, "little")
        while left > 0:
            left -= connection.recv_into(buffer, min(left, _CHUNK_BYTES))
        connection.sendall(b"x")


def _share_of_core() -> tuple[float, float]:
    """Return the part of a core that this process had, and the cores the whole machine used."""
    begin, computed, busy = time.perf_counter(), time.process_time(), _busy_seconds()
    while time.perf_counter() - begin < _COMPUTING_SECONDS:
        pass
    seconds = time.perf_counter() - begin
    return (time.process_time() - computed) / seconds, (_busy_seconds() - busy) / seconds


def _busy_seconds() -> float:
    """Return the busy seconds of all cores since the start of the machine."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def main(task_file: str, result_file: str) -> None:
    """Measure, and let rank 0 write what all have found."""
    dist.init_process_group("gloo")
    mine = measure(**json.loads(Path(task_file).read_text()))
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        Path(result_file).write_text(json.dumps(everyone))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
