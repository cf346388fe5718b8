"""Planners: each turns a graph, a profile and a cluster into a placement, without running it."""

from __future__ import annotations

from collections.abc import Callable

from drlpp.cluster import Cluster
from drlpp.graph import OpGraph
from drlpp.placement import Placement
from drlpp.planners.data_parallel import data_parallel
from drlpp.planners.gpipe import gpipe
from drlpp.planners.pipedream import pipedream
from drlpp.profile import Profile

Planner = Callable[[OpGraph, Profile, Cluster], Placement]

PLANNERS: dict[str, Planner] = {
    "data-parallel": data_parallel,
    "gpipe": gpipe,
    "pipedream": pipedream,
}

__all__ = ["Planner", "PLANNERS", "data_parallel", "gpipe", "pipedream"]
