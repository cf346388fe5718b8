"""Valid placements, drawn at random."""

from __future__ import annotations

import random

from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.problem.problem import PlanningProblem


def random_placement(problem: PlanningProblem, draw: random.Random) -> Placement:
    """Draw a valid placement.

    Every placement that holds all accelerators that it may hold has a chance. First the number of
    stages is drawn, then a topological order of the operators and where it is cut, then the
    accelerators: one for each stage, and the others anywhere.
    """
    workload, accelerators = problem.workload, problem.cluster.accelerators
    count = draw.randint(1, min(len(workload), accelerators))
    order = random_order(workload, draw)
    cuts = [0, *sorted(draw.sample(range(1, len(order)), count - 1)), len(order)]
    shuffled = draw.sample(range(accelerators), accelerators)
    held = [[accelerator] for accelerator in shuffled[:count]]
    if problem.replicate:
        for accelerator in shuffled[count:]:
            draw.choice(held).append(accelerator)
    return Placement(
        stages=tuple(
            Stage(
                operators=tuple(sorted(order[cuts[index] : cuts[index + 1]])),
                accelerators=tuple(sorted(held[index])),
            )
            for index in range(count)
        )
    )


def random_order(workload: Workload, draw: random.Random) -> list[int]:
    """Draw a topological order.

    Again and again, one of the operators that may come next is drawn.
    """
    waits_for = [len(found) for found in workload.predecessors]
    ready = [operator for operator, count in enumerate(waits_for) if count == 0]
    order = []
    while ready:
        index = draw.randrange(len(ready))
        ready[index], ready[-1] = ready[-1], ready[index]
        operator = ready.pop()
        order.append(operator)
        for successor in workload.successors[operator]:
            waits_for[successor] -= 1
            if waits_for[successor] == 0:
                ready.append(successor)
    return order
