"""One of many equally fast placements, always the same, so that it can be learned."""

from __future__ import annotations

from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.planners.problem import Objective

_ROUNDING = 1e-9


def with_latest_cuts(placement: Placement, workload: Workload, objective: Objective) -> Placement:
    """Let every stage take over what it can from the next, as long as nothing gets slower.

    Only the slowest stage decides how fast a placement is, so where the others are cut matters
    little, and a planner's choice among them is arbitrary. Cut as late as possible, a stage ends
    where it would become too slow, which can be seen from the stage itself.

    Args:
        placement: any valid one.
        workload: that it places.
        objective: what is not to grow.
    """
    accelerators = [-1] * (1 + max(placement.accelerators))
    for index, held in enumerate(placement.stages):
        for accelerator in held.accelerators:
            accelerators[accelerator] = index
    stage_of = list(placement.stage_of_operator(len(workload)))
    limit = objective(placement) * (1 + _ROUNDING)
    for number in range(1, len(placement.stages)):
        left = stage_of.count(number)
        for operator, current in enumerate(stage_of):
            ready = all(stage_of[source] < number for source in workload.predecessors[operator])
            if current != number or not ready or left == 1:
                continue
            stage_of[operator] = number - 1
            if objective(Placement.from_assignment(stage_of, accelerators)) > limit:
                stage_of[operator] = number
            else:
                left -= 1
    return Placement.from_assignment(stage_of, accelerators)
