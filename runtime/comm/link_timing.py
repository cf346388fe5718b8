"""Timing single messages between two workers, with nothing else on the link."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from drlpp.capturing.graph import TensorSpec
from drlpp.runtime.comm.transport import Links
from drlpp.runtime.ipc.protocol import TimeLink

_WARM_UPS = 1
_LONGEST_SECONDS = 0.2
"""Seconds for all messages of one size; a slow link has fewer, but always one after the first."""


def exchange(links: Links, worker: int, command: TimeLink) -> dict[int, float] | None:
    """Do this worker's part of timing a link: time messages, or answer them.

    Each message is answered by one of a single byte. Half of the time that a single byte takes
    there and back is the answer's; the rest is the message's.

    Returns:
        For the sender, median seconds of a message by its size in bytes.
    """
    if worker == command.receiver:
        _answer_messages(links, command.sender, (1, *command.sizes_bytes))
        return None
    answer = _round_trip(links, command.receiver, 1, command.repeats) / 2
    seconds = {}
    for size in command.sizes_bytes:
        there_and_back = _round_trip(links, command.receiver, size, command.repeats)
        # The way there is the longer one, whatever the noise of the two medians.
        seconds[size] = max(there_and_back - answer, there_and_back / 2)
    return seconds


def _answer_messages(links: Links, sender: int, sizes_bytes: Sequence[int]) -> None:
    for size in sizes_bytes:
        goes_on = True
        while goes_on:
            (message,) = links.receive([_bytes(size)], sender).wait()
            goes_on = bool(message[0])
            links.send([message[:1]], sender).wait()


def _bytes(size: int) -> TensorSpec:
    return TensorSpec(shape=(size,), dtype="uint8", bytes_=size)


def _round_trip(links: Links, receiver: int, size: int, repeats: int) -> float:
    """Return median seconds of a message to ``receiver`` and back.

    The first byte of a message says whether another one follows; so does its answer.
    """
    message = torch.ones(size, dtype=torch.uint8, device=links.device)
    times: list[float] = []
    goes_on = True
    begin = time.perf_counter()
    while goes_on:
        sent = time.perf_counter()
        enough = len(times) + 1 >= _WARM_UPS + repeats
        late = len(times) > 0 and sent - begin + times[-1] > _LONGEST_SECONDS
        message[0] = goes_on = not (enough or late)
        links.send([message], receiver).wait()
        (answer,) = links.receive([_bytes(1)], receiver).wait()
        # Reading it waits for the device, where waiting for the message does not.
        assert bool(answer[0]) == goes_on
        times.append(time.perf_counter() - sent)
    return statistics.median(times[_WARM_UPS:] or times[-1:])
