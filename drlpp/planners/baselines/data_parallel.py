"""Data parallelism: the whole model as one stage, replicated on every accelerator."""

from __future__ import annotations

from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.problem import PlanningProblem


def data_parallel(problem: PlanningProblem) -> Plan:
    """Place all operators in one stage that all accelerators hold; costs do not matter."""
    stage = Stage(
        operators=tuple(range(len(problem.workload))),
        accelerators=tuple(range(problem.cluster.accelerators)),
    )
    return Plan(Placement(stages=(stage,)))
