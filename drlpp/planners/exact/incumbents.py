"""Planners that prove nothing: they minimise a formula of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from drlpp.planners.baselines.data_parallel import data_parallel
from drlpp.planners.baselines.gpipe import gpipe
from drlpp.planners.pipedream.pipedream import pipedream
from drlpp.planners.problem.problem import PlanningProblem, Solution

Planner = Callable[[PlanningProblem], Solution]

FORMULAS: dict[str, Planner] = {
    "data-parallel": data_parallel,
    "gpipe": gpipe,
    "pipedream": pipedream,
    "pipedream-printed": partial(pipedream, variant="printed"),
    "pipedream-graph": partial(pipedream, cuts="graph"),
    "pipedream-flat": partial(pipedream, cuts="graph", flat=True),
    "pipedream-code": partial(pipedream, variant="code"),
}
