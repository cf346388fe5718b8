"""The best of what all quick planners propose, as the simulator judges it, at its best depth.

Planners minimise rules, which are bounds: they do not know how replicas wait for each other, what
meets at a port, or how many minibatches in flight a link needs. The simulator does, but has to be
given placements. So every planner proposes one, and data parallelism on every number of
accelerators and the fastest accelerator alone are proposed as well: what wins is no slower than
any of them. Where operators share weights, every planner also proposes a placement that keeps these
on one stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from drlpp.errors import InvalidInput, NothingFits
from drlpp.io.formatting import predicted_text
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.plan import Plan, plan
from drlpp.planners.problem.problem import PlanningProblem, Solution
from drlpp.planners.registry import FOLDING, PLANNERS
from drlpp.planners.shared_weights import Sharing, plan_together, shared_weights
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import refuse_lists
from drlpp.simulator import Depth, depth_of, simulate_depths, smallest_depth

_CLEARLY = 1.001
"""Times as slow as another: less is nothing to speak of."""

_ALL_COUNTS = 32
"""Accelerators up to which a step to the next number is one."""


@dataclass(frozen=True)
class Proposal:
    """A plan, and what the simulator says of it.

    Attributes:
        plan: a planner's, with the memory of the depth.
        depth: the best, or the one that was asked for.
        depths: all that were tried.
    """

    plan: Plan
    depth: Depth
    depths: tuple[Depth, ...]

    @property
    def seconds_per_minibatch(self) -> float:
        """Simulated, with the depth."""
        return self.depth.seconds_per_minibatch

    @property
    def text(self) -> str:
        """These seconds with how far off they may be."""
        return predicted_text(self.seconds_per_minibatch, self.plan.error_bar)


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        best: the fastest proposal.
        others: all others, the fastest first.
        lower_bound: seconds per minibatch that no placement can beat by the rule, as far as any
            planner knows.
    """

    best: Proposal
    others: tuple[Proposal, ...]
    lower_bound: float

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        """All, the fastest first."""
        return self.best, *self.others


def best_simulated(
    problem: PlanningProblem,
    method: Method,
    *,
    deepen: bool = True,
    most_staleness: int | None = None,
) -> Choice:
    """Ask all quick planners, and play what they propose.

    Args:
        problem: its workload is that of ``method``.
        method: the schedule, and the weight policy on it.
        deepen: try in-flight depths for every proposal, where the schedule has any to choose;
            otherwise all are played with the method's own.
        most_staleness: the largest s of a stage that is allowed; None for any.

    Raises:
        NothingFits: if no proposal fits into memory.
        InvalidInput: if there is none that the method can run, or its lists are for one number of
            stages.
    """
    refuse_lists(method.in_flight_per_link, method.recompute)
    found: list[Proposal] = []
    error: InvalidInput | None = None
    known = set()
    lower_bound = 0.0
    for proposed in _proposals(problem):
        lower_bound = max(lower_bound, proposed.solution.lower_bound)
        if proposed.placement.canonical in known:
            continue
        known.add(proposed.placement.canonical)
        try:
            found.append(played(proposed, method, deepen=deepen, most_staleness=most_staleness))
        except InvalidInput as failed:
            error = failed
    if not found:
        # It says what is missing where nothing fits.
        plan("exact" if problem.workload.stages_held == 1 else FOLDING[0], problem)
        raise error or NothingFits("no planner found a placement that can be run")
    fastest = min(proposal.seconds_per_minibatch for proposal in found)

    def order(proposal: Proposal) -> tuple[float, int, int]:
        """Of equals, which may differ by rounding, the fewest stages, whose weights are fresher."""
        placement = proposal.plan.placement
        slower = round(proposal.seconds_per_minibatch / fastest, 9) if fastest else 1.0
        return slower, len(placement.stages), len(placement.accelerators)

    # Of equals that are left the first: formulas come before searches.
    found.sort(key=order)
    return Choice(found[0], tuple(found[1:]), lower_bound)


def played(
    proposed: Plan, method: Method, *, deepen: bool = False, most_staleness: int | None = None
) -> Proposal:
    """Play a plan that can be run; with ``deepen`` with several in-flight depths.

    Raises:
        InvalidInput: if it fits into memory with no depth, the weight policy refuses it, or it is
            staler than is allowed.
    """
    problem = proposed.problem
    given = (problem.workload, problem.cluster, proposed.placement, method, problem.memory)
    if deepen and method.schedule_kind.takes_in_flight_per_link:
        depths = simulate_depths(*given, most_staleness=most_staleness)
        chosen = smallest_depth(depths)
    else:
        chosen = depth_of(*given, most_staleness)
        depths = (chosen,)
        if not chosen.possible:
            raise InvalidInput(f"{proposed.placement.configuration}: {chosen.obstacle}")
    return Proposal(proposed.with_in_flight(chosen.per_link), chosen, depths)


def faster_unplanned(found: Proposal, method: Method, *, deepen: bool = False) -> Proposal | None:
    """Return what nobody needs a planner for, if that is faster in the simulator; otherwise None.

    It is data parallelism on all accelerators, or the fastest of them alone.

    Args:
        found: a planner's, played with ``method``.
        method: the schedule, and the weight policy on it.
        deepen: whether it was played at its best depth, as the others are then.
    """
    problem = found.plan.problem
    if problem.workload.stages_held > 1:
        return None
    rivals = []
    for count in sorted({1, problem.cluster.accelerators if problem.replicate else 1}):
        with suppress(InvalidInput):
            rivals.append(played(_single_stage(problem, count), method, deepen=deepen))
    best = min(rivals, key=lambda rival: rival.seconds_per_minibatch, default=found)
    return best if best.seconds_per_minibatch * _CLEARLY < found.seconds_per_minibatch else None


def told_faster(found: Proposal, faster: Proposal) -> str:
    """Return a clause that says what is faster than a planner's plan, and by how much."""
    change = faster.seconds_per_minibatch / found.seconds_per_minibatch - 1
    accelerators = len(faster.plan.placement.accelerators)
    what = (
        "the fastest accelerator alone is"
        if accelerators == 1
        else f"data parallelism on all {accelerators} accelerators is"
    )
    return (
        f"{what} faster than this plan: {faster.text} per minibatch instead of {found.text} "
        f"({change:+.1%}, simulated)"
    )


def sharing_of(choice: Choice) -> Sharing:
    """Compare the best with the fastest that has copies of weights, if it has none, or none."""
    best = choice.best
    shared = tuple(shared_weights(best.plan.problem, best.plan.placement))
    for other in choice.others:
        if any(shared_weights(other.plan.problem, other.plan.placement)) != bool(shared):
            seconds = other.seconds_per_minibatch
            return Sharing(best.plan, other.plan, best.seconds_per_minibatch, seconds, shared)
    return Sharing(best.plan, seconds=best.seconds_per_minibatch, shared=shared)


def _proposals(problem: PlanningProblem) -> Iterator[Plan]:
    """Yield what planners find; a planner that finds nothing proposes nothing."""
    if problem.workload.stages_held > 1:
        names: tuple[str, ...] = FOLDING
    else:
        yield from _single_stages(problem)
        names = tuple(PLANNERS)
    for name in names:
        for planner in (plan, plan_together) if problem.workload.ties else (plan,):
            with suppress(InvalidInput):
                found = planner(name, problem)
                single = all(len(stage.accelerators) == 1 for stage in found.placement.stages)
                if problem.replicate or single:
                    yield found


def _counts(most: int) -> Iterator[int]:
    """Yield numbers of accelerators: all up to 64, then 3% more each time, and the most."""
    count = 1
    while count < most:
        yield count
        count += max(1, count // _ALL_COUNTS)
    yield most


def _single_stages(problem: PlanningProblem) -> Iterator[Plan]:
    """Yield the whole model on the fastest accelerator, and on more and more of them."""
    for count in _counts(problem.cluster.accelerators) if problem.replicate else (1,):
        yield _single_stage(problem, count)


def _single_stage(problem: PlanningProblem, count: int) -> Plan:
    """Return the whole model on the fastest accelerators."""
    cluster = problem.cluster
    order = sorted(range(cluster.accelerators), key=lambda a: -cluster.speeds[a])
    stage = Stage(
        operators=tuple(range(len(problem.workload))), accelerators=tuple(sorted(order[:count]))
    )
    name = "one accelerator" if count == 1 else "data-parallel"
    return Plan(name, problem, Solution(Placement(stages=(stage,))), 0.0)
