"""What a search went through, for its result and for comparing searches at equal cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from drlpp.errors import InvalidInput
from drlpp.placement import Placement
from drlpp.planners.objective import Objective
from drlpp.planners.problem import Solution


@dataclass(frozen=True)
class SearchRun:
    """Every evaluation of a search, in order.

    Attributes:
        placements: that were evaluated; some of them more than once.
        seconds: what the objective said of each; infinite for one that failed.
    """

    placements: tuple[Placement, ...]
    seconds: tuple[float, ...]

    def best_after(self, evaluations: int) -> float:
        """The smallest seconds of the first ``evaluations``."""
        return min(self.seconds[:evaluations])

    @property
    def best(self) -> Placement:
        """The first placement that none is better than."""
        return self.placements[int(numpy.argmin(self.seconds))]

    def solution(self, method: str, *, by_rule: bool) -> Solution:
        """The best placement, with its seconds if they are not those of the problem's rule."""
        return Solution(
            self.best,
            own_seconds=None if by_rule else min(self.seconds),
            note=f"{method}, {len(self.seconds)} evaluations",
        )


class Recorder:
    """Evaluates placements, as many as allowed, and remembers them."""

    def __init__(self, evaluate: Objective, evaluations: int) -> None:
        if evaluations < 1:
            raise InvalidInput(f"{evaluations} evaluations allowed; a search needs at least 1")
        self._evaluate = evaluate
        self._allowed = evaluations
        self._placements: list[Placement] = []
        self._seconds: list[float] = []

    @property
    def used(self) -> float:
        """The share of evaluations that are used up."""
        return len(self._seconds) / self._allowed

    def __call__(self, placement: Placement) -> float:
        """Evaluate a placement."""
        seconds = self._evaluate(placement)
        self._placements.append(placement)
        self._seconds.append(seconds)
        return seconds

    @property
    def run(self) -> SearchRun:
        """All evaluations so far."""
        return SearchRun(tuple(self._placements), tuple(self._seconds))
