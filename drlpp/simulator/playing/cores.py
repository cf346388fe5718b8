"""Workers that share the cores of a host: processor sharing, exact in time.

With b workers busy on c cores each computes at the rate min(1, c / b). The group's own clock, its
*work time*, advances at that rate, so a job that takes s seconds alone ends s later in work time,
whoever else comes and goes; only the next end has to be known in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True)
class CoreGroup:
    """Busy workers of one host.

    Attributes:
        cores: that they share.
        stamp: changes when an end that was foretold is no longer true.
    """

    cores: int
    stamp: int = 0
    _busy: int = 0
    _seconds: float = 0.0
    _work_time: float = 0.0
    _ahead: list[tuple[float, int, int]] = field(default_factory=list)

    @property
    def _rate(self) -> float:
        return 1.0 if self._busy <= self.cores else self.cores / self._busy

    def _advance(self, now: float) -> None:
        self._work_time += (now - self._seconds) * self._rate
        self._seconds = now

    def start(self, now: float, worker: int, work: float, marks: tuple[float, ...]) -> None:
        """Begin a job of ``work`` seconds on a worker; ``marks`` are moments of interest in it."""
        self._advance(now)
        self._busy += 1
        for number, mark in enumerate(marks):
            heappush(self._ahead, (self._work_time + mark, worker, number))
        # Behind all marks, should they be at the same time.
        heappush(self._ahead, (self._work_time + work, worker, len(marks)))
        self.stamp += 1

    def next_seconds(self) -> float | None:
        """Return when the next mark or end will be, if nobody starts before."""
        if not self._ahead:
            return None
        return self._seconds + max(0.0, self._ahead[0][0] - self._work_time) / self._rate

    def pop(self, now: float) -> tuple[int, int]:
        """Return the worker whose mark or end is now, and the number of that mark."""
        self._work_time, worker, mark = heappop(self._ahead)
        self._seconds = now
        self.stamp += 1
        return worker, mark

    def end(self) -> None:
        """End the job of one worker."""
        self._busy -= 1
