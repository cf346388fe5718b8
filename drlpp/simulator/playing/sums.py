"""All-reduces: the gradients of replicas bucket by bucket or of a tie, the squared norm of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from drlpp.simulator.playing.costs import Costs
from drlpp.simulator.playing.network import Ring
from drlpp.simulator.playing.program import Sum

_UNKNOWN = -1.0


@dataclass(slots=True)
class _Sum:
    """One bucket after the other.

    Attributes:
        rings: of the buckets.
        missing: how many workers have yet to give each bucket.
        ready: when the last worker so far has it.
        bucket: that is on its way, or comes next.
        on_its_way: whether its begin is known.
        end: of the bucket before.
        waiting: workers that wait for the end.
    """

    rings: tuple[Ring, ...]
    missing: list[int]
    ready: list[float] = field(init=False)
    bucket: int = 0
    on_its_way: bool = False
    end: float = 0.0
    waiting: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ready = [0.0] * len(self.rings)


Next = tuple[float | None, Sequence[int]]
"""When the next bucket begins, if that is known now; workers that wait for the end, if it is."""

_NOTHING: Next = (None, ())


class Sums:
    """All-reduces by number.

    When the next bucket begins, it has to pass the ports of its :meth:`ring`.

    Attributes:
        ends: when each ends, below 0 while that is not known.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._bucket_seconds = costs.ready_seconds
        self._sums: list[_Sum] = []
        self.ends: list[float] = []

    def add(self, all_reduces: Iterable[Sum]) -> None:
        """Add those of a program, or a round."""
        for summed in all_reduces:
            rings = self._costs.rings_of(summed)
            self._sums.append(_Sum(rings, [summed.members] * len(rings)))
            # Where there are no weights there is nothing to wait for.
            self.ends.append(_UNKNOWN if rings else 0.0)

    def release(self, number: int, worker: int, begin: float) -> Next:
        """Begin a worker's last backward, after which it contributes nothing more."""
        return self._give(number, [begin + seconds for seconds in self._bucket_seconds[worker]])

    def join(self, number: int, now: float) -> Next:
        """Count everything of a worker as ready."""
        return self._give(number, [now] * len(self._sums[number].ready))

    def _give(self, number: int, moments: Sequence[float]) -> Next:
        """Count a worker's buckets as ready at those moments."""
        found = self._sums[number]
        ready, missing = found.ready, found.missing
        for bucket, moment in enumerate(moments):
            if moment > ready[bucket]:
                ready[bucket] = moment
            missing[bucket] -= 1
        return self._next(number)

    def wait(self, number: int, worker: int) -> None:
        """Keep a worker that waits for the end."""
        self._sums[number].waiting.append(worker)

    def ring(self, number: int) -> Ring:
        """Return the way of the bucket that is on its way."""
        found = self._sums[number]
        return found.rings[found.bucket]

    def passed(self, number: int, seconds: float) -> Next:
        """Let the bucket that is on its way leave the last of its ports at that moment."""
        found = self._sums[number]
        found.end = seconds + self.ring(number).latency_seconds
        found.bucket += 1
        found.on_its_way = False
        return self._next(number)

    def _next(self, number: int) -> Next:
        found = self._sums[number]
        if found.on_its_way:
            return _NOTHING
        while found.bucket < len(found.rings):
            bucket, ring = found.bucket, found.rings[found.bucket]
            if found.missing[bucket]:
                return _NOTHING
            begin = max(found.ready[bucket], found.end)
            if ring.links:
                found.on_its_way = True
                return begin, ()
            found.end = begin + ring.latency_seconds
            found.bucket += 1
        if found.rings:
            self.ends[number] = found.end
        return None, found.waiting
