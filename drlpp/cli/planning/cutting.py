"""Planning with cuts between modules or blocks alone, and what that costs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from torch import nn

from drlpp.cli.planning.planning_input import PlanningInput
from drlpp.costs.profiles.contracted_profile import ContractedGraph
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, ModelNote
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.exporting.layouts.module_cuts import contracted_at
from drlpp.io.formatting import predicted_text
from drlpp.placement.plan import Plan
from drlpp.planners import PlanningProblem, Space, best_plan
from drlpp.planners.candidates import Judge
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

    def expanded(self, found: Plan) -> Plan:
        """Return a plan of modules as one of operators."""
        return replace(found, placement=self.contracted.expanded(found.placement))

    def costs(self, found: Plan, space: Space, planner: str) -> str:
        """Return a sentence that compares a plan with the same planner's cuts between operators.

        Where there are too many operators to plan for soon, it says that instead.

        Args:
            found: of modules.
            space: that it was planned in.
            planner: that found it.
        """
        between = f"cut between {len(self.problem.workload)} {self.cut_at}"
        operators = len(self.whole.workload)
        if operators > MANY_OPERATORS:
            return (
                f"{between}; not compared with cuts between all {operators} operators, which take "
                "long to plan"
            )
        finer = best_plan(self.whole, space, planner)
        seconds = Judge(self.whole, space).exactly(self.expanded(found).candidate)
        own, least = predicted_text(seconds, found.error_bar), finer.seconds_per_minibatch
        return (
            f"{between}: {own} per minibatch; between {operators} operators "
            f"{finer.configuration} takes {finer.text}, so whole {self.cut_at} cost "
            f"{seconds / least - 1:+.1%} (simulated)"
        )
