"""What the environments ask of a cluster, live or simulated."""

from __future__ import annotations

from typing import Any, Protocol, Self

from drlpp.capturing.graph import OpGraph
from drlpp.costs.contraction import ContractedGraph
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Outcome
from drlpp.schedule.method import Method


class Measurer(Protocol):
    """Runs one model on accelerators, or predicts what running it would give.

    Gymnasium makes deep copies of the arguments that an environment was made with, a measurer
    among them. One that holds processes or connections defines ``__deepcopy__`` to return itself.
    """

    @property
    def graph(self) -> OpGraph:
        """The model."""

    @property
    def method(self) -> Method:
        """The schedule, and the weight policy on it, of placements that come without a method."""

    @property
    def accelerators(self) -> int:
        """The number of accelerators."""

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        """Measure a candidate's plan; what goes wrong while it runs is a failed measurement."""

    def close(self) -> None:
        """Give the accelerators back; closing twice does no harm."""


class ContractedMeasurer:
    """A :class:`Measurer` whose graph is another's, contracted.

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
