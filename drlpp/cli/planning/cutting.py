"""Planning with cuts between modules or blocks alone, and what that costs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from drlpp.cli.planning.planning_input import PlanningInput
from drlpp.costs.profiles.contracted_profile import ContractedGraph
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, ModelNote
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.exporting.layouts.module_cuts import contracted_at
from drlpp.planners import Plan, PlanningProblem, Proposal, played
from drlpp.schedule.method import Method

MANY_OPERATORS = 2_000
"""Cuts between more operators take planners minutes, and gigabytes."""


def note_many_operators(operators: int) -> None:
    """Say beforehand where planning cuts between operators takes long."""
    if operators > MANY_OPERATORS:
        warnings.warn(
            f"planning cuts between {operators} operators takes minutes; --cut-at blocks keeps "
            "what the model repeats whole, and takes less",
            ModelNote,
            stacklevel=2,
        )


@dataclass(frozen=True)
class Cutting:
    """A problem of modules or blocks, made of one of operators.

    Attributes:
        cut_at: what stays whole.
        contracted: the graph.
        whole: the problem of operators.
        problem: that of modules.
    """

    cut_at: CutAt
    contracted: ContractedGraph
    whole: PlanningProblem
    problem: PlanningProblem

    @classmethod
    def of(
        cls, cut_at: CutAt, given: PlanningInput, whole: PlanningProblem, method: Method
    ) -> Cutting:
        """Contract a problem.

        Raises:
            InvalidInput: no model is named, or it has nothing of the kind.
        """
        profile = given.profile

        def build() -> nn.Module:
            if given.reference is None:
                raise InvalidInput(f"--cut-at {cut_at} divides the model's modules: name the MODEL")
            return given.reference.build().module

        contracted = contracted_at(cut_at, profile.graph, build)
        workload = Workload.of(contracted.profile(profile), method)
        return cls(cut_at, contracted, whole, replace(whole, workload=workload))

    def expanded(self, found: Plan, method: Method) -> Plan:
        """Return a plan of modules, for a method, as one of operators."""
        placement = self.contracted.expanded(found.placement)
        solution = replace(found.solution, placement=placement)
        workload = self.whole.workload.with_method(method)
        whole = replace(self.whole, workload=workload, memory=found.problem.memory)
        return replace(found, problem=whole, solution=solution)

    def costs(
        self, found: Proposal, planned: Callable[[PlanningProblem], Proposal], method: Method
    ) -> str:
        """Return a sentence that compares a plan with the same planner's cuts between operators.

        Where there are too many operators to plan for soon, it says that instead.

        Args:
            found: of modules.
            planned: plans a problem as that was planned.
            method: that it runs with.
        """
        between = f"cut between {len(self.problem.workload)} {self.cut_at}"
        if len(self.whole.workload) > MANY_OPERATORS:
            return (
                f"{between}; not compared with cuts between all {len(self.whole.workload)} "
                "operators, which take long to plan"
            )
        finer = planned(self.whole)
        own = played(self.expanded(found.plan, method), self._at_depth(found, method))
        seconds, least = own.seconds_per_minibatch, finer.seconds_per_minibatch
        return (
            f"{between}: {own.text} per minibatch; between {len(self.whole.workload)} operators "
            f"{finer.plan.placement.configuration} takes {finer.text}, so whole {self.cut_at} cost "
            f"{seconds / least - 1:+.1%} (simulated)"
        )

    @staticmethod
    def _at_depth(found: Proposal, method: Method) -> Method:
        if not method.schedule_kind.takes_in_flight_per_link:
            return method
        return method.model_copy(update={"in_flight_per_link": found.depth.per_link})
