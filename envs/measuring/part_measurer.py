"""A measurer on some accelerators of another, numbered anew: those that are there."""

from __future__ import annotations

from typing import Any, Self

from drlpp.capturing.graph import OpGraph
from drlpp.envs.measuring.measurer import Measurer
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Outcome
from drlpp.placement.renumbering import Renumbering
from drlpp.schedule.method import Method


class PartMeasurer:
    """A :class:`~drlpp.envs.measuring.measurer.Measurer` with a part of another's accelerators.

    Args:
        measurer: measures on all of them.
        part: their numbers there.
    """

    def __init__(self, measurer: Measurer, part: Renumbering) -> None:
        self.measurer = measurer
        self.part = part

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self

    @property
    def graph(self) -> OpGraph:
        """That of the measurer."""
        return self.measurer.graph

    @property
    def method(self) -> Method:
        """That of the measurer."""
        return self.measurer.method

    @property
    def accelerators(self) -> int:
        """The number of accelerators of the part."""
        return len(self.part.numbers)

    def measure(self, placement: Candidate | ExecutionPlan, minibatches: int = 30) -> Outcome:
        """Measure a candidate, or that of a plan, on the accelerators of the part.

        Raises:
            InvalidInput: it cannot be run there.
        """
        own = ExecutionPlan.taken(placement, self.graph, self.accelerators, self.method)
        whole = ExecutionPlan.of(
            self.part.in_cluster(own.candidate), self.graph, self.measurer.accelerators
        )
        return self.part.measured_in_part(self.measurer.measure(whole, minibatches))

    def close(self) -> None:
        """Close the measurer."""
        self.measurer.close()
