"""What a search went through, for its result and for comparing searches at equal cost."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy

from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement
from drlpp.planners.problem.objective import Objective
from drlpp.planners.problem.problem import Solution

_REQUESTS = 3
"""The factor by which a search may ask more than it may evaluate."""

_STALE = 300
"""A search that asks this often in a row for what it knows has come by all that it can."""


@dataclass(frozen=True)
class SearchRun:
    """Every evaluation of a search, in order.

    Attributes:
        placements: that were evaluated, all different.
        seconds: what the objective said of each; infinite for one that failed.
    """

    placements: tuple[Placement, ...]
    seconds: tuple[float, ...]

    def best_after(self, evaluations: int) -> float:
        """Return the smallest seconds of the first ``evaluations``."""
        return min(self.seconds[:evaluations])

    @property
    def best(self) -> Placement:
        """The first placement that none is better than."""
        return self.placements[int(numpy.argmin(self.seconds))]

    def solution(self, method: str, *, by_rule: bool) -> Solution:
        """Return the best placement.

        Its seconds are given if they are not those of the problem's rule.
        """
        return Solution(
            self.best,
            own_seconds=None if by_rule else min(self.seconds),
            note=f"{method}, {len(self.seconds)} evaluations",
        )


def identity(placement: Placement) -> Hashable:
    """Return what the placement consists of: it is like no other."""
    # Tuples are compared many times faster than records.
    return tuple((stage.operators, stage.accelerators) for stage in placement.stages)


class Recorder:
    """Evaluates placements, as many distinct ones as allowed, and remembers them."""

    def __init__(self, evaluate: Objective, evaluations: int) -> None:
        if evaluations < 1:
            raise InvalidInput(f"{evaluations} evaluations allowed; a search needs at least 1")
        self._evaluate = evaluate
        self._allowed = evaluations
        self._requests = 0
        self._stale = 0
        self._found: dict[Hashable, tuple[Placement, float]] = {}

    @property
    def used(self) -> float:
        """The share of evaluations, or of requests, that is used up."""
        return max(len(self._found), self._requests / _REQUESTS) / self._allowed

    @property
    def goes_on(self) -> bool:
        """Whether there are evaluations left, and the search still comes by new placements."""
        return self.used < 1 and self._stale < _STALE

    def __call__(self, placement: Placement) -> float:
        """Evaluate a placement, or tell what came out before."""
        self._requests += 1
        key = identity(placement)
        self._stale += 1
        if key not in self._found:
            self._stale = 0
            self._found[key] = placement, self._evaluate(placement)
        return self._found[key][1]

    @property
    def run(self) -> SearchRun:
        """All evaluations so far."""
        return SearchRun(
            tuple(placement for placement, _ in self._found.values()),
            tuple(seconds for _, seconds in self._found.values()),
        )
