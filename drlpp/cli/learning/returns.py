"""Which workers of a session that have returned are worth a new beginning."""

from __future__ import annotations

from collections.abc import Iterable


class Returns:
    """What became of workers that returned, counted in runs that the agent has measured.

    A host may be there for as long as it takes to load a model, again and again. A worker that is
    lost again before anything was measured with it is not counted on until two more runs have been
    measured, the next time four, and so on. As runs are bounded, so are new beginnings.
    """

    def __init__(self) -> None:
        self._runs = 0
        self._taken: dict[int, int] = {}
        self._pauses: dict[int, int] = {}
        self._from: dict[int, int] = {}

    def measured(self) -> None:
        """Note that the agent has measured a run."""
        self._runs += 1

    def count(self, returned: Iterable[int]) -> bool:
        """Return whether one of the workers that have returned is counted on."""
        return any(self._runs >= self._from.get(worker, 0) for worker in returned)

    def taken(self, workers: Iterable[int]) -> None:
        """Note that these are used again."""
        self._taken |= dict.fromkeys(workers, self._runs)

    def lost(self, workers: Iterable[int]) -> int:
        """Note that these are lost; return for how many runs one of them is not counted on."""
        longest = 0
        for worker in workers:
            if self._taken.pop(worker, None) != self._runs:
                self._pauses.pop(worker, None)
                continue
            pause = self._pauses[worker] = 2 * self._pauses.get(worker, 1)
            self._from[worker] = self._runs + pause
            longest = max(longest, pause)
        return longest
