"""What it costs that stages share weights, and the plan that keeps these on one stage instead.

The rule counts what copies need (:mod:`drlpp.costs.stage_cost`), so planners weigh both by
themselves. What the rule leaves out, that copies are as late as the latest of them and that an
update of a schedule that flushes waits for the sum, the simulator plays. It has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import networkx

from drlpp.costs.analytic_model import pipeline_of
from drlpp.costs.message_load import TiedSums
from drlpp.costs.stage_cost import Group
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.exact.contraction import Contraction, in_topological_order, join
from drlpp.planners.plan import Plan, plan
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.simulator import simulate


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


@dataclass(frozen=True)
class Sharing:
    """A plan, and what its shared weights cost.

    Attributes:
        plan: the faster of two in the simulator: that of the planner, and its best one that keeps
            every shared weight on one stage.
        other: the slower one; None if there is no other.
        seconds, other_seconds: of a minibatch, simulated; infinite for one that does not fit into
            memory, or that the method cannot train.
        shared: what stages of ``plan`` share.
    """

    plan: Plan
    other: Plan | None = None
    seconds: float = 0.0
    other_seconds: float = 0.0
    shared: tuple[SharedWeights, ...] = ()


def choose_sharing(found: Plan, method: Method) -> Sharing:
    """Compare a plan whose stages share weights with the best that shares none, if there is one."""
    shared = tuple(shared_weights(found.problem, found.placement))
    if not shared:
        return Sharing(found)
    seconds = _simulated(found, method)
    apart = None
    with suppress(InvalidInput):
        apart = plan_together(found.method, found.problem)
    other_seconds = math.inf if apart is None else _simulated(apart, method)
    if apart is None or other_seconds == math.inf:
        return Sharing(found, None, seconds, shared=shared)
    if other_seconds < seconds:
        return Sharing(apart, found, other_seconds, seconds)
    return Sharing(found, apart, seconds, other_seconds, shared)


def _simulated(found: Plan, method: Method) -> float:
    """Return seconds per minibatch; without end if it does not fit, or cannot be trained so."""
    problem = found.problem
    if found.prediction.missing_bytes:
        return math.inf
    try:
        ExecutionPlan(
            Candidate(found.placement, method), pipeline_of(problem.workload, found.placement)
        )
        return simulate(
            problem.workload, problem.cluster, found.placement, method, memory=problem.memory
        ).seconds_per_minibatch
    except InvalidInput:
        return math.inf


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


def plan_together(method: str, problem: PlanningProblem) -> Plan:
    """Let a planner solve a problem with all operators that share weights on one stage.

    Raises:
        InvalidInput: if it cannot solve that.
    """
    joined = join_sharing(problem.workload)
    found = plan(method, replace(problem, workload=joined.workload))
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
    solution = replace(
        found.solution, placement=Placement(stages=stages), lower_bound=0.0, proven_optimal=False
    )
    return replace(found, problem=problem, solution=solution)


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
