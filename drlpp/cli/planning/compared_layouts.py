"""Layouts that a user has, simulated beside a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from drlpp.cli.planning.planning_input import PlanningInput
from drlpp.cli.showing.layout_report import layout_line
from drlpp.comparison.contenders import YOURS
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.module_cuts import read_layout
from drlpp.planners import Plan, Proposal, Solution, played
from drlpp.schedule.method import Method
from drlpp.simulator import Simulation, simulate


@dataclass(frozen=True)
class ComparedLayout:
    """A layout as it was given, and what the simulator says of it.

    Attributes:
        given: ``modules:NAME,…``.
        proposal: played at its best depth, if depths are compared; None if it cannot be.
        obstacle: why it cannot.
        simulation: of the proposal, for what its stages do.
    """

    given: str
    proposal: Proposal | None = None
    obstacle: str | None = None
    simulation: Simulation | None = None

    def line(self, best: float) -> str:
        """Return a sentence about it, beside what takes ``best`` seconds for a minibatch."""
        if self.proposal is None or self.simulation is None:
            return f"{YOURS} {self.given}: {self.obstacle}"
        seconds, error_bar = self.proposal.seconds_per_minibatch, self.simulation.error_bar
        line = layout_line(self.given, seconds, best, self.simulation.workers, error_bar)
        return f"{line}; its bound is {self.proposal.plan.prediction.bottleneck}"

    def record(self) -> dict[str, Any]:
        """Return the same as plain data."""
        if self.proposal is None or self.simulation is None:
            return {"layout": self.given, "error": self.obstacle}
        return {
            "layout": self.given,
            "configuration": self.proposal.plan.placement.configuration,
            "in_flight_per_link": self.proposal.depth.per_link,
            "simulated_seconds_per_minibatch": self.proposal.seconds_per_minibatch,
            "error_bar": self.simulation.error_bar or None,
            "waiting": list(self.simulation.bubble.values()),
        }


def compared_layouts(
    given: Sequence[str], what: PlanningInput, plan: Plan, method: Method, *, deepen: bool
) -> list[ComparedLayout]:
    """Play layouts as a plan is played, with the same method.

    Args:
        given: ``modules:NAME,…``.
        what: was planned; it names the model.
        plan: of that, whose problem they are for.
        method: that all run with; a list of it is stretched to the stages of each.
        deepen: whether each is played at its own best depth.

    Raises:
        InvalidInput: a layout cannot be read.
    """
    if not given:
        return []
    if what.reference is None:
        raise InvalidInput("--compare divides the model's modules: name the MODEL as well")
    module, graph = what.reference.build().module, what.profile.graph
    accelerators = plan.problem.cluster.accelerators
    found = []
    for text in given:
        placement = read_layout(text, module, graph, accelerators)
        own_method = method.for_stages(len(placement.stages))
        memory = replace(
            plan.problem.memory,
            in_flight_per_link=own_method.in_flight_per_link,
            recomputes=own_method.recompute,
        )
        problem = replace(plan.problem, memory=memory)
        try:
            own = played(Plan(YOURS, problem, Solution(placement), 0.0), own_method, deepen=deepen)
        except InvalidInput as error:
            found.append(ComparedLayout(text, obstacle=str(error)))
            continue
        depth = {"in_flight_per_link": own.depth.per_link} if deepen else {}
        simulation = simulate(
            problem.workload, problem.cluster, placement, own_method.model_copy(update=depth)
        )
        found.append(ComparedLayout(text, own, None, simulation))
    return found
