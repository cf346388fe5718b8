"""Planners: each turns a problem (workload, cluster, rule) into a placement, without running it."""

from __future__ import annotations

from collections.abc import Callable

from drlpp.planners.data_parallel import data_parallel
from drlpp.planners.gpipe import gpipe
from drlpp.planners.problem import PlanningProblem, Solution

Planner = Callable[[PlanningProblem], Solution]

PLANNERS: dict[str, Planner] = {
    "data-parallel": data_parallel,
    "gpipe": gpipe,
}

__all__ = ["Planner", "PLANNERS", "PlanningProblem", "Solution", "data_parallel", "gpipe"]
