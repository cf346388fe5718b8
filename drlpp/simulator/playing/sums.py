"""All-reduces: the gradients of replicas bucket by bucket or of a tie, the squared norm of all."""

from __future__ import annotations

from collections.abc import Sequence

from drlpp.simulator.playing.network import Ring
from drlpp.simulator.playing.program import Sum


class RunningSum:
    """A sum that workers make together, one bucket after the other.

    When the next bucket begins, it has to pass the ports of its :attr:`ring`.

    Attributes:
        order: among sums that begin at the same moment.
        complete: whether its end is known.
        end: of the bucket before, or of all.
        waiting: workers that wait for the end.
    """

    def __init__(self, summed: Sum, rings: tuple[Ring, ...], order: tuple[int, int, int]) -> None:
        self.order = order
        # Where there are no weights there is nothing to wait for.
        self.complete = not rings
        self.end = 0.0
        self.waiting: list[int] = []
        self._rings = rings
        # Of every bucket: how many workers have yet to give it, when the last so far has it.
        self._missing = [summed.members] * len(rings)
        self._ready = [0.0] * len(rings)
        self._bucket = 0

    @property
    def ring(self) -> Ring:
        """The way of the bucket that is on its way, or comes next."""
        return self._rings[self._bucket]

    def release(self, moments: Sequence[float]) -> float | None:
        """Take a worker's buckets, each ready at its moment; returns when the next begins.

        None is where that is not known yet, the sum is complete, or one is on its way.
        """
        on_its_way = self._begins
        for bucket, moment in enumerate(moments):
            self._ready[bucket] = max(self._ready[bucket], moment)
            self._missing[bucket] -= 1
        return None if on_its_way else self._next()

    def join(self, now: float) -> float | None:
        """Take everything of a worker, as ready; returns the same."""
        return self.release([now] * len(self._rings))

    def passed(self, seconds: float) -> float | None:
        """Let the bucket on its way leave the last of its ports then; returns the same."""
        self.end = seconds + self.ring.latency_seconds
        self._bucket += 1
        return self._next()

    @property
    def _begins(self) -> bool:
        """Whether all have given the bucket that is on its way, or comes next."""
        return self._bucket < len(self._rings) and not self._missing[self._bucket]

    def _next(self) -> float | None:
        while self._begins:
            begin = max(self._ready[self._bucket], self.end)
            if self.ring.links:
                return begin
            self.end = begin + self.ring.latency_seconds
            self._bucket += 1
        self.complete = self._bucket == len(self._rings)
        return None
