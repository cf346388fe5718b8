"""When things happened on a device: moments that are marked now and read at the end.

A processor has done its work when a call returns, so a moment is the time of its mark. A
GPU works behind the process that commands it. There a mark is an event in the GPU's own stream, so
that a pass is timed from its first operator to its last and nobody waits for it; the process waits
once, before the moments are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any


class Clock:
    """Marks moments of one run, on a device that has done its work when a call returns."""

    def __init__(self) -> None:
        self._moments: list[float] = []

    def mark(self) -> None:
        """Note this moment."""
        self._moments.append(time.perf_counter())

    def moments(self) -> Sequence[float]:
        """Return all moments so far, in ``time.perf_counter`` seconds; wait until all have come."""
        return self._moments


_MOST_PENDING = 4096
"""Events that exist at a time; more than a GPU's queue of work holds, so old ones have happened."""


class StreamClock(Clock):
    """The clock of a device that works through a stream of commands.

    The first event is waited for, which ties the device's time to the process's. From there the
    milliseconds between neighbouring events are added up, since single precision would not tell
    microseconds a minute after the first.
    """

    def __init__(self, new_event: Callable[[], Any]) -> None:
        super().__init__()
        self._new_event = new_event
        self._pending: list[Any] = []
        self._latest = new_event()
        self._latest.record()
        self._latest.synchronize()
        self._seconds = time.perf_counter()

    def mark(self) -> None:
        """Let the device note when it gets here."""
        if len(self._pending) >= _MOST_PENDING:
            self._settle(_MOST_PENDING // 2)
        event = self._new_event()
        event.record()
        self._pending.append(event)

    def moments(self) -> Sequence[float]:
        """Wait for the device; return all moments so far."""
        self._settle(len(self._pending))
        return self._moments

    def _settle(self, count: int) -> None:
        """Turn the oldest events into seconds."""
        due, self._pending = self._pending[:count], self._pending[count:]
        if due:
            due[-1].synchronize()
        for event in due:
            self._seconds += self._latest.elapsed_time(event) / 1e3
            self._latest = event
            self._moments.append(self._seconds)
