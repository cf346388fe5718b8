"""Weights that stages share: what that costs, and plans that keep them on one stage instead.

The rule counts what copies need (:mod:`drlpp.costs.stage_cost`), so planners weigh both by
themselves. What the rule leaves out, that copies are as late as the latest of them and that an
update of a schedule that flushes waits for the sum, the simulator plays. It has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from drlpp.costs.contraction import Contraction, expanded, in_order, join
from drlpp.costs.message_load import TiedSums
from drlpp.costs.stage_cost import Group
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.placement.plan import Plan
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
            bandwidth = float(Group.of(cluster, held, others).bandwidth)
            longest = max(longest, of_minibatch / bandwidth)
        names = tuple(name for tie in ties for name in tie.names)
        yield SharedWeights(names, stages, sum(tie.bytes_ for tie in ties), longest)


def planned_together(planner: Callable[[PlanningProblem], Plan], problem: PlanningProblem) -> Plan:
    """Let a planner solve a problem with all operators that share weights on one stage.

    Raises:
        InvalidInput: if it cannot solve that.
    """
    joined = join_sharing(problem.workload)
    found = planner(replace(problem, workload=joined.workload))
    placement = expanded(found.placement, joined.members)
    # The bound is not one for other placements.
    return replace(found, placement=placement, lower_bound=0.0, proven_optimal=False)


def join_sharing(workload: Workload) -> Contraction:
    """Join the operators that share trained weights, and what has to stand between them."""
    edges = list(workload.edges)
    for tie in workload.ties:
        if tie.trained:
            edges += pairwise((*tie.operators, tie.operators[0]))
    # In a circle of order and sharing, all are on the same stage.
    groups = in_order(edges, [[operator] for operator in range(len(workload))])
    return Contraction(join(workload, list(map(list, groups))), tuple(groups))
