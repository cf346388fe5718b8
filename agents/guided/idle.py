"""Accelerators that a placement leaves idle, for a policy that gives every one a stage."""

from __future__ import annotations

from drlpp.placement.placement import Placement, Stage
from drlpp.planners.problem import Objective


def assign_idle_accelerators(
    placement: Placement, accelerators: int, objective: Objective
) -> Placement:
    """Make idle accelerators further replicas of a placement, each where it hurts least.

    A policy has no choice that leaves an accelerator idle. Planners leave some idle where a further
    replica would cost more in all-reduces than it saves.

    Args:
        placement: on some of the accelerators.
        accelerators: A.
        objective: what is to stay small.
    """
    for idle in sorted(set(range(accelerators)) - set(placement.accelerators)):
        options = [_joined(placement, stage, idle) for stage in range(len(placement.stages))]
        placement = min(options, key=objective)
    return placement


def _joined(placement: Placement, index: int, accelerator: int) -> Placement:
    stage = placement.stages[index]
    held = tuple(sorted((*stage.accelerators, accelerator)))
    joined = Stage(operators=stage.operators, accelerators=held)
    stages = (*placement.stages[:index], joined, *placement.stages[index + 1 :])
    return Placement(stages=stages)
