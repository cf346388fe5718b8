"""The planners by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from drlpp.planners.data_parallel import data_parallel
from drlpp.planners.exact import exact
from drlpp.planners.gpipe import gpipe
from drlpp.planners.local_search import local_search
from drlpp.planners.non_contiguous import non_contiguous
from drlpp.planners.pipedream import pipedream
from drlpp.planners.problem import PlanningProblem, Solution
from drlpp.planners.random_search import random_search

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
    "non-contiguous": non_contiguous,
    "local-search": local_search,
    "random": random_search,
}
"""As the command line names them."""

BASELINES = ("data-parallel", "gpipe", "pipedream", "exact")
"""What a learned placement is measured against."""
