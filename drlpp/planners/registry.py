"""The planners by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from drlpp.planners.data_parallel import data_parallel
from drlpp.planners.exact import exact
from drlpp.planners.gpipe import gpipe
from drlpp.planners.pipedream import pipedream
from drlpp.planners.problem import PlanningProblem, Solution

Planner = Callable[[PlanningProblem], Solution]

PLANNERS: dict[str, Planner] = {
    "data-parallel": data_parallel,
    "gpipe": gpipe,
    "pipedream": pipedream,
    "pipedream-printed": partial(pipedream, variant="printed"),
    "pipedream-graph": partial(pipedream, cuts="graph"),
    "pipedream-flat": partial(pipedream, cuts="graph", flat=True),
    "pipedream-code": partial(pipedream, variant="code"),
    "exact": exact,
}
"""As the command line names them."""
