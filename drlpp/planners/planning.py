"""The best plan that is known: what the baselines propose, and what a search finds from there.

Baselines minimise rules, which are bounds: these do not know how replicas wait for each other, what
meets at a port, or how many minibatches in flight a link needs. The simulator does. So every
baseline proposes a placement, data parallelism on every number of accelerators and the fastest
accelerator alone among them, and a search in the simulator begins with these, to end no worse.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from drlpp.costs.placed_stages import PlacedStages
from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.baselines import data_parallel, gpipe
from drlpp.planners.by_rule import by_rule
from drlpp.planners.pipedream.pipedream import pipedream
from drlpp.planners.problem import PlanningProblem, memory_shortage
from drlpp.planners.search import MOST_PER_LINK, Judge, Limits, Space, search
from drlpp.planners.side_by_side import side_by_side
from drlpp.schedule.method import Method
from drlpp.simulator import Simulation, simulate

Planner = Callable[[PlanningProblem], Plan]

SEARCH = "search"
"""What plans by default."""

PLANNERS: dict[str, Planner] = {
    "data-parallel": data_parallel,
    "gpipe": gpipe,
    "pipedream": pipedream,
}
"""The baselines, as the command line names them."""

_STARTS: dict[str, Planner] = PLANNERS | {
    "rule": by_rule,
    "pipedream-graph": partial(pipedream, cuts="graph"),
    "pipedream-flat": partial(pipedream, cuts="graph", flat=True),
}
"""What a search begins with: the baselines, PipeDream's also on the graph, the rule's optimum."""

_FOLDING = ("gpipe",)
"""The baselines that can give every accelerator two stages, where a schedule needs that."""

_MOST_SPEEDS = 4
"""Of accelerators, slowest first, for which the rule's optimum is a start as if all were equal."""

_AS_FAST = 1.01
"""Of depths up to this many times as slow as the fastest the smallest is taken."""

_AS_SOON = 1.03
"""Of what is expected at the loss within so many times the soonest the least stale is taken."""

_BRIEFLY = 2
"""Climbs in a row without a gain that end the search for it."""

_ALL_COUNTS = 32
"""Accelerators up to which data parallelism is proposed for every number of them."""

_SEARCHES = 4
"""From one seed a search may end in a basin: on slow links what several find is up to 16% apart."""

_LONG_SEARCH_SECONDS = 2.0
"""If a search takes longer, the others are made on several cores."""


@dataclass(frozen=True)
class _Found:
    """What a search found, or why nothing, and how many candidates it looked at."""

    plan: Plan | None = None
    seconds: float = math.inf
    judged: int = 0
    played: int = 0
    obstacle: str = ""


def check_planner(name: str) -> None:
    """Refuse a name that no planner has."""
    if name not in (known := (SEARCH, *PLANNERS)):
        raise InvalidInput(f"planner {name!r} is unknown; there are {', '.join(known)}")


def best_plan(
    problem: PlanningProblem,
    space: Space,
    planner: str = SEARCH,
    limits: Limits | None = None,
) -> Plan:
    """Return the fastest plan, by the simulator, that a planner finds.

    Args:
        problem: its workload is that of the space's method; its seed is used.
        space: the methods that may be chosen.
        planner: ``search``, or a baseline alone, at the depth that suits it.
        limits: on how long the search lasts.

    Raises:
        NothingFits: nothing that was looked at fits into memory.
        InvalidInput: there is no such planner, or the method can run nothing of what it finds.
    """
    check_planner(planner)
    begin = time.perf_counter()
    if planner == SEARCH:
        found = _searched(problem, space, limits)
    else:
        own = _simulated(problem, space, _proposed(problem, {planner: PLANNERS[planner]}))
        others = list(own[1:])
        with suppress(InvalidInput):
            counts = sorted({1, problem.cluster.accelerators if problem.replicate else 1})
            others += _simulated(problem, space, _single_stages(problem, counts))
        others = [one for one in others if one.placement != own[0].placement]
        others.sort(key=lambda one: one.seconds_per_minibatch)
        found = replace(own[0], others=tuple(others))
    return replace(found, planner_seconds=time.perf_counter() - begin)


def baseline_plans(problem: PlanningProblem, space: Space) -> tuple[Plan, ...]:
    """Return what all baselines propose with the space's method, the fastest first.

    Each is at the depth that suits it, where the space varies the depth.

    Raises:
        NothingFits: nothing of it fits into memory.
        InvalidInput: the method can run nothing of it.
    """
    return tuple(_simulated(problem, space, _all_proposed(problem)))


def starts_of(space: Space, plans: Iterable[Plan]) -> list[Candidate]:
    """Return plans with the space's own method, and at their depths where it has them."""
    found = [
        Candidate(plan.placement, method)
        for plan in plans
        for method in (plan.method, space.method)
        if method in space.methods
    ]
    return list(dict.fromkeys(found))


def simulated(problem: PlanningProblem, space: Space, plan: Plan) -> Plan:
    """Return a plan with what the simulator says of it, at the depth of the space that suits it.

    Raises:
        InvalidInput: no depth fits into memory, the weight policy refuses all, or they are staler
            than is allowed.
    """
    method = space.method
    depths = range(MOST_PER_LINK + 1) if space.deepens else [method.in_flight_per_link]
    tried = [
        _played(problem, plan.placement, method.model_copy(update={"in_flight_per_link": depth}))
        for depth in depths
    ]
    obstacles = [_obstacle(problem, space, one) for one in tried]
    played = [one for one, obstacle in zip(tried, obstacles, strict=True) if obstacle is None]
    if not played:
        raise InvalidInput(f"{plan.configuration}: {obstacles[0]}")
    costs = []
    for one in played:
        weight = problem.per_second(Candidate(one.placement, one.method))
        # What is not judged is as good as it is fast.
        costs.append(one.seconds_per_minibatch * (weight if math.isfinite(weight) else 1.0))
    # Less depth has less staleness and memory.
    first = next(number for number, cost in enumerate(costs) if cost <= _AS_FAST * min(costs))
    return _with_played(plan, played[first])


def _played(problem: PlanningProblem, placement: Placement, method: Method) -> Simulation:
    return simulate(problem.workload, problem.cluster, placement, method, memory=problem.memory)


def _obstacle(problem: PlanningProblem, space: Space, played: Simulation) -> str | None:
    """Return why it cannot be trained with: memory, what the weight policy refuses, staleness."""
    limits = problem.cluster.memory_bytes
    missing = max(
        needed - (limits[accelerator] or math.inf)
        for needed, accelerator in zip(played.memory_bytes, played.accelerators, strict=True)
    )
    if missing > 0:
        return f"an accelerator misses {missing:,.0f} bytes of memory"
    plan = Candidate(played.placement, played.method)
    try:
        ExecutionPlan(plan, played.pipeline).refuse_staler_than(space.most_staleness)
    except InvalidInput as error:
        return str(error)
    return None


def _with_played(plan: Plan, played: Simulation) -> Plan:
    return replace(
        plan,
        method=played.method,
        seconds_per_minibatch=played.seconds_per_minibatch,
        steadiness=played.steadiness,
        error_bar=played.error_bar,
    )


def _searched(problem: PlanningProblem, space: Space, limits: Limits | None) -> Plan:
    plans: Sequence[Plan] = ()
    # A search may find what fits, or can be run, with another method of the space.
    with suppress(InvalidInput):
        plans = baseline_plans(problem, space)
    judge, starts = Judge(problem, space), starts_of(space, plans)
    first, *others = range(problem.seed, problem.seed + (_SEARCHES if limits is None else 1))
    begin = time.perf_counter()
    found = [_found(judge, starts, limits, first)]
    worth_it = time.perf_counter() - begin > _LONG_SEARCH_SECONDS
    tasks = [(judge, starts, limits, seed) for seed in others]
    found += side_by_side(_found, tasks, worth_it=worth_it)
    fastest = min(found, key=lambda one: one.seconds)
    if fastest.plan is None:
        raise NothingFits(fastest.obstacle)
    if problem.objective == "loss":
        soon = _AS_SOON * fastest.seconds
        while less_late := _less_late(judge, starts, limits, fastest, soon):
            found.append(less_late)
            fastest = less_late
    assert fastest.plan is not None
    best, solved = fastest.plan, judge.problem_of(fastest.plan.method)
    best = _with_played(best, _played(solved, best.placement, best.method))
    return replace(
        best,
        note=f"{sum(one.judged for one in found):,} candidates were judged, "
        f"{sum(one.played for one in found):,} of them simulated",
        others=tuple(plans),
    )


def _less_late(
    judge: Judge,
    starts: Sequence[Candidate],
    limits: Limits | None,
    fastest: _Found,
    soon: float,
) -> _Found | None:
    """Return what is less stale than a plan and soon enough at the loss, if that is found.

    What lateness costs is known roughly, so of plans that are equal by it a race prefers this too.
    """
    assert fastest.plan is not None
    problem, candidate = judge.problem, fastest.plan.candidate
    pipeline = PlacedStages(problem.workload, candidate.placement).pipeline
    staleness = max(ExecutionPlan(candidate, pipeline).delays)
    if not staleness:
        return None
    fresher = Judge(problem, replace(judge.space, most_staleness=staleness - 1))
    found = _found(fresher, starts, limits or Limits(patience=_BRIEFLY), problem.seed)
    return found if found.seconds <= soon else None


def _found(judge: Judge, starts: Sequence[Candidate], limits: Limits | None, seed: int) -> _Found:
    judge = judge.anew()
    try:
        plan = search(judge, starts, limits, seed)[0]
    except NothingFits as error:
        return _Found(obstacle=str(error))
    return _Found(plan, plan.seconds_per_minibatch, judge.judged, judge.played)


def _simulated(problem: PlanningProblem, space: Space, proposed: Iterable[Plan]) -> list[Plan]:
    """Return what can be run of proposals, the fastest first; of equals, the fewest stages."""
    found: list[Plan] = []
    error: InvalidInput | None = None
    known: dict[Placement, float] = {}
    for plan in proposed:
        if plan.placement.canonical not in known:
            known[plan.placement.canonical] = 0.0
            try:
                found.append(simulated(problem, space, plan))
            except InvalidInput as failed:
                error = failed
                known[plan.placement.canonical] = problem.predict(plan.placement).missing_bytes
    if not found:
        if known and (least := min(known, key=lambda placement: known[placement])) and known[least]:
            raise memory_shortage(problem, least)
        raise error or NothingFits("no baseline found a placement that can be run")
    fastest = min(plan.seconds_per_minibatch for plan in found)

    def order(plan: Plan) -> tuple[float, int, int]:
        slower = round(plan.seconds_per_minibatch / fastest, 9) if fastest else 1.0
        return slower, len(plan.placement.stages), len(plan.placement.accelerators)

    return sorted(found, key=order)


def _all_proposed(problem: PlanningProblem) -> Iterator[Plan]:
    if problem.workload.stages_held > 1:
        yield from _proposed(problem, {name: PLANNERS[name] for name in _FOLDING})
        return
    yield from _single_stages(problem, _counts(problem.cluster.accelerators))
    yield from _as_if_equal(problem)
    for name, planner in _STARTS.items():
        # A planner that finds nothing proposes nothing.
        with suppress(InvalidInput):
            yield from _proposed(problem, {name: planner})


def _proposed(problem: PlanningProblem, planners: dict[str, Planner]) -> Iterator[Plan]:
    """Yield what planners find."""
    for name, planner in planners.items():
        if problem.workload.stages_held > 1 and name not in _FOLDING:
            raise InvalidInput(
                f"planner {name} gives every accelerator one stage, and the schedule needs two; "
                f"use {SEARCH} or {' or '.join(_FOLDING)}"
            )
        found = planner(problem)
        single = all(len(stage.accelerators) == 1 for stage in found.placement.stages)
        if problem.replicate or single:
            yield replace(found, found_by=name)


def _as_if_equal(problem: PlanningProblem) -> Iterator[Plan]:
    """Yield the rule's optimum for accelerators of some speed or more, as if all had that one."""
    cluster = problem.cluster
    speeds = sorted(set(cluster.speeds))
    for slowest in speeds[: _MOST_SPEEDS if len(speeds) > 1 else 0]:
        chosen = [a for a, speed in enumerate(cluster.speeds) if speed >= slowest]
        equal = cluster.part(chosen).with_speeds([slowest] * len(chosen))
        with suppress(InvalidInput):
            found = by_rule(replace(problem, cluster=equal))
            yield Plan(found.placement.on(chosen), found_by="rule")


def _counts(most: int) -> Iterator[int]:
    """Yield numbers of accelerators: all up to 64, then 3% more each time, and the most."""
    count = 1
    while count < most:
        yield count
        count += max(1, count // _ALL_COUNTS)
    yield most


def _single_stages(problem: PlanningProblem, counts: Iterable[int]) -> Iterator[Plan]:
    """Yield the whole model on the fastest accelerator, and on more and more of them."""
    cluster = problem.cluster
    order = sorted(range(cluster.accelerators), key=lambda a: -cluster.speeds[a])
    operators = tuple(range(len(problem.workload)))
    for count in counts if problem.replicate else (1,):
        stage = Stage(operators=operators, accelerators=tuple(sorted(order[:count])))
        name = "one accelerator" if count == 1 else "data-parallel"
        yield Plan(Placement(stages=(stage,)), found_by=name)
