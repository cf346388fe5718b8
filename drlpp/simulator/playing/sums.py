"""All-reduces: the gradients of replicas bucket by bucket or of a tie, the squared norm of all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from drlpp.simulator.playing.costs import Costs
from drlpp.simulator.playing.program import Sum

_UNKNOWN = -1.0


@dataclass(slots=True)
class _Sum:
    """``ready`` is when the last worker has each bucket, ``missing`` who has yet to give some."""

    ring_seconds: tuple[float, ...]
    missing: int
    ready: list[float] = field(init=False)
    waiting: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ready = [0.0] * len(self.ring_seconds)


class Sums:
    """All-reduces by number.

    Attributes:
        ends: when each ends, below 0 while a worker is missing.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._bucket_seconds = costs.ready_seconds
        self._sums: list[_Sum] = []
        self.ends: list[float] = []

    def add(self, all_reduces: Iterable[Sum]) -> None:
        """Add those of a program, or a round."""
        costs = self._costs
        for stage, members, tie in all_reduces:
            ring: tuple[float, ...] = (costs.squared_norm_seconds,)
            if tie >= 0:
                ring = (costs.tied_ring_seconds[stage, tie],)
            elif stage >= 0:
                ring = costs.ring_seconds[stage]
            self._sums.append(_Sum(ring, members))
            # Where there are no weights there is nothing to wait for.
            self.ends.append(_UNKNOWN if ring else 0.0)

    def release(self, number: int, worker: int, begin: float) -> list[int]:
        """Begin a worker's last backward, after which it contributes nothing more.

        Returns:
            Workers that need not wait for the end any longer, as it is known now.
        """
        ready = self._sums[number].ready
        for bucket, seconds in enumerate(self._bucket_seconds[worker]):
            ready[bucket] = max(ready[bucket], begin + seconds)
        return self._complete(number)

    def release_bucket(self, number: int, bucket: int, now: float) -> list[int]:
        """Count one bucket of a worker as ready, and return what :meth:`release` does."""
        found = self._sums[number]
        found.ready[bucket] = max(found.ready[bucket], now)
        return self._complete(number) if bucket + 1 == len(found.ready) else []

    def join(self, number: int, now: float) -> list[int]:
        """Count everything of a worker as ready, and return what :meth:`release` does."""
        found = self._sums[number]
        found.ready = [max(ready, now) for ready in found.ready]
        return self._complete(number)

    def wait(self, number: int, worker: int) -> None:
        """Return ``worker`` when the end is known."""
        self._sums[number].waiting.append(worker)

    def _complete(self, number: int) -> list[int]:
        found = self._sums[number]
        found.missing -= 1
        if found.missing or not found.ready:
            return []
        end = 0.0
        for ready, seconds in zip(found.ready, found.ring_seconds, strict=True):
            end = max(end, ready) + seconds
        self.ends[number] = end
        return found.waiting
