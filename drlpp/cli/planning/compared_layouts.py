"""Layouts that a user has, simulated beside a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drlpp.cli.planning.planning_input import PlanningInput
from drlpp.cli.showing.layout_report import layout_line
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.module_cuts import read_layout
from drlpp.placement.plan import Plan
from drlpp.planners import PlanningProblem, Space, simulated
from drlpp.racing.contenders import YOURS
from drlpp.simulator import Simulation, simulate


@dataclass(frozen=True)
class ComparedLayout:
    """A layout as it was given, and what the simulator says of it.

    Attributes:
        given: ``modules:NAME,…``.
        plan: at the depth that suits it; None if it cannot be run.
        obstacle: why it cannot.
        simulation: of the plan, for what its stages do.
    """

    given: str
    plan: Plan | None = None
    obstacle: str | None = None
    simulation: Simulation | None = None

    def line(self, best: float) -> str:
        """Return a sentence about it, beside what takes ``best`` seconds for a minibatch."""
        if self.plan is None or self.simulation is None:
            return f"{YOURS} {self.given}: {self.obstacle}"
        seconds, error_bar = self.plan.seconds_per_minibatch, self.simulation.error_bar
        return layout_line(self.given, seconds, best, self.simulation.workers, error_bar)

    def record(self) -> dict[str, Any]:
        """Return the same as plain data."""
        if self.plan is None or self.simulation is None:
            return {"layout": self.given, "error": self.obstacle}
        return {
            "layout": self.given,
            "configuration": self.plan.configuration,
            "in_flight_per_link": self.plan.method.in_flight_per_link,
            "simulated_seconds_per_minibatch": self.plan.seconds_per_minibatch,
            "error_bar": self.simulation.error_bar or None,
            "waiting": list(self.simulation.bubble.values()),
        }


def compared_layouts(
    given: Sequence[str], what: PlanningInput, problem: PlanningProblem, space: Space
) -> list[ComparedLayout]:
    """Simulate layouts with the space's method, at the depth that suits each if it varies.

    Args:
        given: ``modules:NAME,…``.
        what: was planned; it names the model.
        problem: of its operators.
        space: of the plan.

    Raises:
        InvalidInput: a layout cannot be read.
    """
    if not given:
        return []
    if what.reference is None:
        raise InvalidInput("--compare divides the model's modules: name the MODEL as well")
    module, graph = what.reference.build().module, what.profile.graph
    found = []
    for text in given:
        placement = read_layout(text, module, graph, problem.cluster.accelerators)
        try:
            own = simulated(problem, space, Plan(placement, found_by=YOURS))
        except InvalidInput as error:
            found.append(ComparedLayout(text, obstacle=str(error)))
            continue
        simulation = simulate(problem.workload, problem.cluster, placement, own.method)
        found.append(ComparedLayout(text, own, None, simulation))
    return found
