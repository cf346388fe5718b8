"""Planners: each turns a problem (workload, cluster, rule) into a placement, without running it."""

from __future__ import annotations

from drlpp.planners.baselines.data_parallel import data_parallel
from drlpp.planners.baselines.gpipe import even_split, gpipe
from drlpp.planners.best_searched import Searched, best_searched
from drlpp.planners.best_simulated import (
    Choice,
    Proposal,
    best_simulated,
    faster_unplanned,
    played,
    sharing_of,
    told_faster,
)
from drlpp.planners.candidates import Limits, Space, Vary, read_vary
from drlpp.planners.exact.exact import Tractability, exact, tractability
from drlpp.planners.plan import Plan, plan
from drlpp.planners.problem.problem import PlanningProblem, Solution
from drlpp.planners.registry import BASELINES, PLANNERS, Planner

__all__ = [
    "Planner",
    "PLANNERS",
    "BASELINES",
    "PlanningProblem",
    "Solution",
    "Plan",
    "plan",
    "best_simulated",
    "Choice",
    "Proposal",
    "played",
    "faster_unplanned",
    "told_faster",
    "best_searched",
    "Searched",
    "Space",
    "Vary",
    "read_vary",
    "Limits",
    "sharing_of",
    "data_parallel",
    "gpipe",
    "even_split",
    "exact",
    "Tractability",
    "tractability",
]
