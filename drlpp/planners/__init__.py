"""Planners: each turns a problem (workload, cluster, rule) into a placement, without running it."""

from __future__ import annotations

from drlpp.planners.baselines import data_parallel, gpipe
from drlpp.planners.planning import (
    PLANNERS,
    Planner,
    baseline_plans,
    best_plan,
    simulated,
    starts_of,
)
from drlpp.planners.problem import PlanningProblem, objective_for
from drlpp.planners.search import Limits, Space, Vary, read_vary, usually_varied

__all__ = [
    "PlanningProblem",
    "objective_for",
    "Space",
    "Vary",
    "read_vary",
    "usually_varied",
    "Limits",
    "best_plan",
    "baseline_plans",
    "starts_of",
    "simulated",
    "Planner",
    "PLANNERS",
    "data_parallel",
    "gpipe",
]
