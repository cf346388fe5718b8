"""A measurer of placements that keep modules whole, on one of placements of operators."""

from __future__ import annotations

from typing import Any, Self

from drlpp.capturing.graph import OpGraph
from drlpp.costs.contraction import ContractedGraph
from drlpp.envs.measuring.measurer import Measurer
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Outcome
from drlpp.schedule.method import Method


class ContractedMeasurer:
    """A :class:`~drlpp.envs.measuring.measurer.Measurer` whose graph is another's, contracted.

    Args:
        measurer: measures placements of the original.
        contracted: of its graph.
    """

    def __init__(self, measurer: Measurer, contracted: ContractedGraph) -> None:
        self.measurer = measurer
        self.contracted = contracted

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self

    @property
    def graph(self) -> OpGraph:
        """The contracted graph."""
        return self.contracted.graph

    @property
    def method(self) -> Method:
        """That of the measurer."""
        return self.measurer.method

    @property
    def accelerators(self) -> int:
        """Those of the measurer."""
        return self.measurer.accelerators

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        """Measure the candidate with its groups taken apart."""
        candidate = self.contracted.expanded_candidate(plan.candidate)
        whole = ExecutionPlan.of(candidate, self.measurer.graph, self.accelerators)
        return self.measurer.measure(whole, minibatches)

    def close(self) -> None:
        """Close the measurer."""
        self.measurer.close()
