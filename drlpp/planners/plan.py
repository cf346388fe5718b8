"""Running a planner, and explaining what it found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from drlpp.costs.analytic_model import Prediction
from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.problem.problem import PlanningProblem, Solution
from drlpp.planners.registry import FOLDING, PLANNERS
from drlpp.schedule.per_stage import refuse_lists


@dataclass(frozen=True)
class Plan:
    """What a planner found for a problem, and what that costs.

    Attributes:
        method: the planner's name.
        problem: that it solved.
        solution: what it found.
        planner_seconds: that it took.
    """

    method: str
    problem: PlanningProblem = field(repr=False)
    solution: Solution
    planner_seconds: float

    def with_in_flight(self, per_link: int | tuple[int, ...]) -> Plan:
        """Return a copy with another in-flight depth (:class:`drlpp.costs.memory.MemoryModel`)."""
        memory = replace(self.problem.memory, in_flight_per_link=per_link)
        return replace(self, problem=replace(self.problem, memory=memory))

    @property
    def placement(self) -> Placement:
        """The stages and their accelerators."""
        return self.solution.placement

    @cached_property
    def prediction(self) -> Prediction:
        """The prediction by the problem's rule, which is the same for all planners."""
        return self.problem.predict(self.placement)

    @property
    def error_bar(self) -> float:
        """How far off what the simulator says of it may be (:meth:`.Workload.error_bar`)."""
        return self.problem.workload.error_bar(self.placement)

    @cached_property
    def next_best(self) -> Alternative | None:
        """The fastest placement that is one change away; None if none fits, or none is tried.

        None is where accelerators hold two stages.
        """
        if self.placement.is_folded:
            return None
        fitting = (
            alternative
            for alternative in _changes(self.problem, self.placement)
            if not alternative.prediction.missing_bytes
        )
        return min(fitting, key=lambda found: found.prediction.seconds_per_minibatch, default=None)


@dataclass(frozen=True)
class Alternative:
    """A placement that differs from a plan by one ``change``, in words."""

    change: str
    placement: Placement
    prediction: Prediction


def plan(method: str, problem: PlanningProblem) -> Plan:
    """Let a planner solve a problem.

    Raises:
        InvalidInput: if there is no such planner, or it cannot solve the problem.
    """
    refuse_lists(problem.memory.in_flight_per_link, problem.memory.recomputes)
    if method not in PLANNERS:
        raise InvalidInput(f"planner {method!r} is unknown; there are {', '.join(PLANNERS)}")
    if problem.workload.stages_held > 1 and method not in FOLDING:
        raise InvalidInput(
            f"planner {method} gives every accelerator one stage, and the schedule needs two; use "
            f"planner {' or '.join(FOLDING)}"
        )
    begin = time.perf_counter()
    solution = PLANNERS[method](problem)
    return Plan(method, problem, solution, time.perf_counter() - begin)


def _changes(problem: PlanningProblem, placement: Placement) -> Iterator[Alternative]:
    for change, stages in (
        *_moved_operators(problem, placement.stages),
        *(_moved_accelerators(placement.stages) if problem.replicate else ()),
        *_merged_stages(problem, placement.stages),
    ):
        changed = Placement(stages=tuple(stages))
        memory = problem.memory.for_stages(len(stages))
        yield Alternative(change, changed, replace(problem, memory=memory).predict(changed))


def _moved_operators(
    problem: PlanningProblem, stages: tuple[Stage, ...]
) -> Iterator[tuple[str, list[Stage]]]:
    """Yield stages with one operator in a neighbouring stage, as far as the order allows it."""
    workload = problem.workload
    stage_of = Placement(stages=stages).stage_of_operator(len(workload))
    for operator, home in enumerate(stage_of):
        if len(stages[home].operators) == 1:
            continue
        earliest = max((stage_of[p] for p in workload.predecessors[operator]), default=0)
        latest = min((stage_of[s] for s in workload.successors[operator]), default=len(stages) - 1)
        for target in (home - 1, home + 1):
            if earliest <= target <= latest:
                changed = list(stages)
                changed[home] = _stage(set(stages[home].operators) - {operator}, stages[home])
                changed[target] = _stage({*stages[target].operators, operator}, stages[target])
                yield f"{workload.names[operator]} in stage {target}", changed


def _moved_accelerators(stages: tuple[Stage, ...]) -> Iterator[tuple[str, list[Stage]]]:
    """Yield stages with the last replica of a stage moved to another stage."""
    for source, giver in enumerate(stages):
        for target, taker in enumerate(stages):
            if source != target and len(giver.accelerators) > 1:
                moved = giver.accelerators[-1]
                changed = list(stages)
                changed[source] = Stage(
                    operators=giver.operators, accelerators=giver.accelerators[:-1]
                )
                changed[target] = Stage(
                    operators=taker.operators,
                    accelerators=tuple(sorted((*taker.accelerators, moved))),
                )
                yield f"accelerator {moved} in stage {target}", changed


def _merged_stages(
    problem: PlanningProblem, stages: tuple[Stage, ...]
) -> Iterator[tuple[str, list[Stage]]]:
    """Yield stages with two of them merged, on the accelerators of both."""
    for index in range(len(stages) - 1):
        one, other = stages[index : index + 2]
        accelerators = tuple(sorted((*one.accelerators, *other.accelerators)))
        merged = Stage(
            operators=tuple(sorted((*one.operators, *other.operators))),
            accelerators=accelerators if problem.replicate else accelerators[:1],
        )
        yield (
            f"stages {index} and {index + 1} as one",
            [*stages[:index], merged, *stages[index + 2 :]],
        )


def _stage(operators: set[int], like: Stage) -> Stage:
    return Stage(operators=tuple(sorted(operators)), accelerators=like.accelerators)
