"""Weights that stages share: what that costs, and plans that keep them on one stage instead.

The rule counts what copies need (:mod:`drlpp.costs.stage_cost`), so planners weigh both by
themselves. What the rule leaves out, that copies are as late as the latest of them and that an
update of a schedule that flushes waits for the sum, the simulator plays. It has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import networkx

from drlpp.costs.message_load import TiedSums
from drlpp.costs.stage_cost import Group
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.contraction import Contraction, in_topological_order, join
from drlpp.planners.problem import PlanningProblem


@dataclass(frozen=True)
class SharedWeights:
    """Weights that several stages of a placement hold copies of.

    Attributes:
        names: of the parameters.
        stages: that hold a copy.
        bytes_: of each copy, which are summed for every update.
        seconds: that a copy's gradients, or their sum, take to a stage for a minibatch, over the
            slowest link.
    """

    names: tuple[str, ...]
    stages: tuple[int, ...]
    bytes_: float
    seconds: float


def shared_weights(problem: PlanningProblem, placement: Placement) -> Iterator[SharedWeights]:
    """Yield what stages of a placement share."""
    workload, cluster = problem.workload, problem.cluster
    stage_of = placement.stage_of_operator(len(workload))
    replicas = [len(stage.accelerators) for stage in placement.stages]
    work = workload.stage(placement.stages[-1].operators, last=True)
    sums = TiedSums.of(workload, work, stage_of, replicas).bytes_
    shared = workload.ties_between(stage_of).values()
    for ties, (stages, of_minibatch) in zip(shared, sums, strict=True):
        longest = 0.0
        for stage in stages:
            held = placement.stages[stage].accelerators
            others = [a for k in stages if k != stage for a in placement.stages[k].accelerators]
            link = Group.of(cluster, held, others).link
            longest = max(longest, of_minibatch / link.bandwidth_bytes_per_second)
        names = tuple(name for tie in ties for name in tie.names)
        yield SharedWeights(names, stages, sum(tie.bytes_ for tie in ties), longest)


def planned_together(planner: Callable[[PlanningProblem], Plan], problem: PlanningProblem) -> Plan:
    """Let a planner solve a problem with all operators that share weights on one stage.

    Raises:
        InvalidInput: if it cannot solve that.
    """
    joined = join_sharing(problem.workload)
    found = planner(replace(problem, workload=joined.workload))
    stages = tuple(
        Stage(
            operators=tuple(
                sorted(op for group in stage.operators for op in joined.members[group])
            ),
            accelerators=stage.accelerators,
        )
        for stage in found.placement.stages
    )
    # The bound is not one for other placements.
    placement = Placement(stages=stages)
    return replace(found, placement=placement, lower_bound=0.0, proven_optimal=False)


def join_sharing(workload: Workload) -> Contraction:
    """Join the operators that share trained weights, and what has to stand between them."""
    order = workload.order()
    for tie in workload.ties:
        if tie.trained:
            order.add_edges_from(pairwise((*tie.operators, tie.operators[0])))
    # In a circle of order and sharing, all are on the same stage.
    circles = networkx.strongly_connected_components(order)
    groups = in_topological_order(workload, [sorted(circle) for circle in circles])
    return Contraction(join(workload, groups), tuple(tuple(group) for group in groups))
