"""An endless stream of problems with known optima: what a policy is pre-trained on."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from random import Random

from drlpp.agents.guided.retrace import assign_idle_accelerators
from drlpp.agents.paper.rollout import Trajectory
from drlpp.agents.transfer.context import PlacementContext
from drlpp.costs.synthetic_profiles import generate
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.planners import Limits, PlanningProblem, Space, best_plan, exact
from drlpp.planners.downsets import all_downsets
from drlpp.planners.problem import AnalyticObjective, Objective
from drlpp.schedule.method import DEFAULT_METHOD
from drlpp.specs.cluster import Link, local_cluster

FAMILIES = ("chain", "residual", "towers", "layered")
"""The families that are trained on; ``blocks``, ``encoder-decoder`` and the zoo are held out."""

MOST_DOWNSETS = 500
"""The most downsets of models that are planned. Models with more are drawn again, since their
optima take seconds."""

OPERATORS, ACCELERATORS = (8, 60), (2, 8)
"""The smallest and the largest model and cluster that are drawn."""

SINGLE_STAGES = 0.25
"""How many of the problems with a single stage as optimum, nearly half of all and soon learned, are
taken."""

_KEPT = 4000
"""How many of the latest problems are used further."""

_BRIEF = Limits(judged=300, patience=1)
"""Of the search for a placement on unequal accelerators."""

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class SolvedProblem:
    """A problem with its optimum.

    Attributes:
        problem: what is planned.
        context: as the policy sees it.
        objective: the rule.
        optimum: the fastest placement by the rule; it may leave accelerators idle.
        optimum_seconds: what it takes.
        imitated: the optimum with idle accelerators as replicas where they hurt least, and cut as
            late as possible.
    """

    problem: PlanningProblem
    context: PlacementContext
    objective: AnalyticObjective
    optimum: Placement
    optimum_seconds: float
    imitated: Placement

    @classmethod
    def solve(cls, problem: PlanningProblem) -> SolvedProblem:
        """Plan exactly, or for unequal accelerators by a search."""
        objective = AnalyticObjective(problem)
        if len(set(problem.cluster.speeds)) == 1:
            optimum = exact(problem).placement
        else:
            found = best_plan(problem, Space(DEFAULT_METHOD, frozenset()), limits=_BRIEF)
            plans = (found.placement, *(plan.placement for plan in found.others))
            optimum = min(plans, key=objective)
        busy = assign_idle_accelerators(optimum, problem.cluster.accelerators, objective)
        imitated = with_latest_cuts(busy, problem.workload, objective)
        # A search may have overlooked it.
        optimum = min(optimum, imitated, key=objective)
        return cls(
            problem=problem,
            context=PlacementContext.of_workload(problem.workload, problem.cluster),
            objective=objective,
            optimum=optimum,
            optimum_seconds=objective(optimum),
            imitated=imitated,
        )

    @property
    def optimum_ideals(self) -> float:
        """The optimum's seconds per minibatch in ideals."""
        workload = self.problem.workload
        work = float((workload.seconds + workload.update_seconds).sum())
        return self.optimum_seconds * sum(self.problem.cluster.speeds) / work

    def gap(self, trajectory: Trajectory) -> float:
        """Return how much longer a placement takes than the optimum by the rule.

        0.05 is 5% longer.
        """
        return self.objective(placement_of(trajectory)) / self.optimum_seconds - 1


def placement_of(trajectory: Trajectory) -> Placement:
    """Return the placement at the end of a trajectory."""
    return Placement.from_assignment(
        trajectory.walk.stage_of_operator, trajectory.stage_of_accelerator
    )


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
    accelerators = placement.stage_of_accelerator(1 + max(placement.accelerators))
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


def draw_problem(family: str, operators: int, accelerators: int, draw: Random) -> PlanningProblem:
    """Draw a made-up model on a cluster of one host.

    In four of ten draws speeds are unequal.
    """
    bandwidth = math.exp(draw.uniform(math.log(1e8), math.log(2e10)))
    latency = draw.choice([0.0, 0.0, 1e-5, 1e-4])
    speeds = None
    if draw.random() < 0.4:
        slower = draw.choice([0.4, 0.5, 0.6, 0.75, 0.9])
        kinds = [1.0, slower] if draw.random() < 0.7 else [1.0, slower, slower / 2]
        speeds = [draw.choice(kinds) for _ in range(accelerators)]
    workload = Workload.of(generate(family, operators, draw.randrange(2**31)))
    link = Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=latency)
    return PlanningProblem(
        _with_side_costs(workload, draw), local_cluster(accelerators, link, speeds)
    )


def _with_side_costs(workload: Workload, draw: Random) -> Workload:
    """Add what made-up models lack and measured ones have, each in half of the draws.

    Updates take 0.5 to 30% of the passes' seconds, collecting gradients 2 to 100%, and every pass
    and update of a stage 0.01 to 2%, whatever the stage has.
    """

    def share(least: float, most: float) -> float:
        if draw.random() < 0.5:
            return 0.0
        return math.exp(draw.uniform(math.log(least), math.log(most)))

    seconds = float(workload.seconds.sum())
    per_byte = seconds / max(float(workload.parameter_bytes.sum()), 1.0)
    return replace(
        workload,
        update_seconds=workload.parameter_bytes * per_byte * share(0.005, 0.3),
        sharing_seconds_per_byte=per_byte * share(0.02, 1.0),
        forward_overhead_seconds=seconds * share(1e-4, 2e-2),
        backward_overhead_seconds=seconds * share(1e-4, 2e-2),
        update_overhead_seconds=seconds * share(1e-4, 2e-2),
    )


class ProblemStream:
    """A stream of solved problems: new ones all the time, the latest kept for further use.

    Args:
        draw: of all that is drawn.
        operators: the smallest and the largest model.
        accelerators: the smallest and the largest cluster.
    """

    def __init__(
        self,
        draw: Random,
        operators: tuple[int, int] = OPERATORS,
        accelerators: tuple[int, int] = ACCELERATORS,
    ) -> None:
        self._draw = draw
        self._operators = operators
        self._accelerators = accelerators
        self._kept: deque[SolvedProblem] = deque(maxlen=_KEPT)

    def new(self) -> SolvedProblem:
        """Return a problem that was never seen; none that takes long, few with a single stage."""
        while True:
            family, draw = self._draw.choice(FAMILIES), self._draw
            sizes = draw.randint(*self._operators), draw.randint(*self._accelerators)
            problem = draw_problem(family, *sizes, draw)
            if all_downsets(problem.workload, MOST_DOWNSETS) is None:
                continue
            solved = SolvedProblem.solve(problem)
            if len(solved.optimum.stages) > 1 or draw.random() <= SINGLE_STAGES:
                self._kept.append(solved)
                return solved

    def recent(self, count: int) -> list[SolvedProblem]:
        """Return some of the latest problems, none twice."""
        return self._draw.sample(self._kept, min(count, len(self._kept)))
