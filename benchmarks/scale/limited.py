"""A function in a process of its own, which may take so much of the processor and no more."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch

_MOST_BYTES = 12 << 30


@dataclass(frozen=True)
class Spent:
    """What a function took, in seconds of the processor, and gave.

    Attributes:
        seconds: of the processor; the limit, if it was reached.
        memory_bytes: by which the largest size of the process grew.
        value: that it gave; None if it did not end, with ``obstacle`` saying why.
    """

    seconds: float
    memory_bytes: int
    value: Any = None
    obstacle: str | None = None


def limited(seconds: int, function: Callable[..., Any], *given: Any) -> Spent:
    """Call a function, found by its name in a module, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(theirs, seconds, function, given))
    process.start()
    theirs.close()
    try:
        spent: Spent = ours.recv()
    except EOFError:
        spent = Spent(seconds, 0, obstacle=f"not within {seconds} s")
    process.join()
    return spent


def _call(
    answer: Connection, seconds: int, function: Callable[..., Any], given: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    used = time.process_time()
    limit = int(used) + seconds + 1
    # Both: at the first a process is only told, which Python does not hear in long calls of C.
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    # The largest size counts from here on: importing took more than some steps do.
    Path("/proc/self/clear_refs").write_text("5")
    before = psutil.Process().memory_info().rss
    value, obstacle = None, None
    try:
        value = function(*given)
    except MemoryError:
        obstacle = f"not with {_MOST_BYTES >> 30} GiB"
    largest = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer.send(Spent(time.process_time() - used, max(0, largest - before), value, obstacle))
