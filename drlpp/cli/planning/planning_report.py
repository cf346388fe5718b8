"""Plans as tables for readers, and as placement.json for the runtime."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table

from drlpp.cli.planning.plan_record import compared_depths
from drlpp.cli.planning.planning_input import PlanningInput
from drlpp.costs.analytic_model import pipeline_of
from drlpp.costs.profile import Profile
from drlpp.errors import InvalidInput
from drlpp.io.documents import write_document
from drlpp.io.formatting import predicted_text, ranges_of, seconds_text
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners.best_simulated import Choice, Proposal, told_faster
from drlpp.planners.plan import Plan
from drlpp.planners.shared_weights import Sharing
from drlpp.schedule.analysis.staleness import staleness_text
from drlpp.schedule.method import Method
from drlpp.simulator import Depth
from drlpp.specs.data import OWN_DATA
from drlpp.specs.optimizer_spec import OptimizerSpec

_RULES = {
    "overlapped": "the slower of a stage's compute, with what is left of its all-reduce, and its "
    "messages",
    "serial": "compute, all-reduce and messages of a stage, added up",
}


def plan_report(
    plan: Plan,
    proposal: Proposal | None = None,
    choice: Choice | None = None,
    sharing: Sharing | None = None,
    faster: Proposal | None = None,
) -> RenderableType:
    """Explain a plan: its stages, what rules, how sure it is, and what the next best is.

    What the simulator says comes first, in ``proposal``; ``choice`` is what it was chosen from,
    ``sharing`` the comparison with a plan whose stages share other weights, and ``faster`` what is
    faster and takes no planner.
    """
    prediction, problem = plan.prediction, plan.problem
    names = problem.workload.names
    table = Table(box=SIMPLE_HEAD)
    for column in ("stage", "accelerators", "operators"):
        table.add_column(column, overflow="fold")
    for column in ("compute", "all-reduce", "messages", "in flight", "memory"):
        table.add_column(column, justify="right", no_wrap=True)
    for number, (stage, predicted) in enumerate(
        zip(plan.placement.stages, prediction.stages, strict=True)
    ):
        first, last = names[stage.operators[0]], names[stage.operators[-1]]
        table.add_row(
            str(number),
            _ranges(stage.accelerators),
            f"{len(stage.operators)}: {first}" + (f" … {last}" if last != first else ""),
            seconds_text(predicted.compute_seconds),
            seconds_text(predicted.all_reduce_seconds),
            seconds_text(predicted.message_seconds),
            str(predicted.in_flight),
            decimal(round(predicted.memory_bytes)),
        )
    return Group(
        f"{problem.workload.model} on {problem.cluster.accelerators} accelerators, "
        f"planned by {plan.method} in {seconds_text(plan.planner_seconds)}: "
        f"{plan.placement.configuration}",
        *_simulated(plan, proposal),
        *_unplanned(proposal, faster),
        table,
        *_explanations(plan),
        *_sharing(sharing),
        *_comparison(plan, compared_depths(proposal)),
        *(_rivals(choice) if choice else ()),
    )


def _sharing(sharing: Sharing | None) -> Iterator[str]:
    """Tell what sharing weights costs, and what not sharing them would."""
    if sharing is None:
        return
    for shared in sharing.shared:
        several = len(shared.names) > 1
        yield (
            f"{_names(shared.names)} {'are' if several else 'is'} on stages "
            f"{' and '.join(map(str, shared.stages))}: {decimal(round(shared.bytes_))} summed for "
            f"each update, {seconds_text(shared.seconds)} of messages for a minibatch"
        )
    if sharing.other is not None:
        other = sharing.other.placement.configuration
        kept = "kept on one stage" if sharing.shared else "with copies on several stages"
        if math.isinf(sharing.other_seconds):
            yield f"shared weights {kept}: {other} does not fit, or the method cannot train it"
        else:
            slower = sharing.other_seconds / sharing.seconds - 1 if sharing.seconds else 0.0
            apart = predicted_text(sharing.other_seconds, sharing.other.error_bar)
            together = predicted_text(sharing.seconds, sharing.plan.error_bar)
            yield (
                f"shared weights {kept}: {other}, {apart} per minibatch instead of {together} "
                f"({slower:+.1%}, simulated)"
            )
    elif sharing.shared:
        yield "no plan was found that keeps shared weights on one stage"


def _names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


def _simulated(plan: Plan, proposal: Proposal | None) -> Iterator[str]:
    if proposal is None:
        return
    seconds, bound = proposal.seconds_per_minibatch, plan.prediction.seconds_per_minibatch
    above = f", {max(seconds / bound - 1, 0):.1%} above the rule's bound" if bound else ""
    yield f"simulated: {proposal.text} per minibatch in steady state{above}"
    if proposal.depth.steadiness < 1:
        yield (
            "(no period was found: over a long window, in which the fastest worker took "
            f"{proposal.depth.steadiness:.0%} of the slowest's time)"
        )


def _unplanned(proposal: Proposal | None, faster: Proposal | None) -> Iterator[str]:
    """Warn of a plan that is slower than what takes no planner."""
    if proposal is not None and faster is not None:
        ways = "leave out --method for the best of all planners"
        if faster.plan.method == "data-parallel":
            ways = f"take --method data-parallel, or {ways}"
        yield f"{told_faster(proposal, faster)}; {ways}"


def lateness(profile: Profile, proposal: Proposal | None, method: Method) -> str | None:
    """Tell how late gradients of a plan are, as training with it will; None if they are not.

    Args:
        profile: that it was planned by.
        proposal: what the simulator says of it; None if it cannot be run.
        method: with the depth that was chosen.
    """
    if proposal is None:
        return None
    plan = proposal.plan
    pipeline = pipeline_of(plan.problem.workload, plan.placement)
    return staleness_text(pipeline, method, profile.batch_size)


def _rivals(choice: Choice) -> Iterator[str]:
    """Tell by how much it may miss, and what else was proposed, the best of each planner."""
    if choice.lower_bound:
        above = choice.best.seconds_per_minibatch / choice.lower_bound - 1
        yield (
            f"gap: no placement takes less than {seconds_text(choice.lower_bound)}, by the rule; "
            f"this one is at most {max(above, 0):.1%} slower than the best"
        )
    best: dict[str, Proposal] = {}
    for other in choice.others:
        best.setdefault(other.plan.method, other)
    if best:
        found = ", ".join(
            f"{name} {other.plan.placement.configuration} {other.text}"
            for name, other in best.items()
        )
        yield f"also proposed (simulated, each at its best depth): {found}"


def _comparison(plan: Plan, depths: Sequence[Depth]) -> Iterator[str]:
    if depths:
        chosen = plan.problem.memory.in_flight_per_link
        times = ", ".join(
            f"{depth.per_link}: {predicted_text(depth.seconds_per_minibatch, plan.error_bar)}"
            + ("" if depth.possible else " (too much memory, or too stale)")
            for depth in depths
        )
        yield f"in flight for each link beyond NOAM: {chosen} is enough (simulated, {times})"


def _explanations(plan: Plan) -> list[str]:
    prediction, solution = plan.prediction, plan.solution
    seconds = prediction.seconds_per_minibatch
    lines = [
        f"bound: {seconds_text(seconds)} per minibatch, {prediction.bottleneck} "
        f"(the rule: {_RULES[plan.problem.costs]})"
    ]
    if solution.own_seconds is not None:
        lines.append(f"by the planner's own formula: {seconds_text(solution.own_seconds)}")
    worst = prediction.worst_memory
    stage = prediction.stages[worst]
    room = (
        "no limit is known"
        if stage.spare_bytes is None
        else f"{decimal(round(stage.spare_bytes))} to spare"
        if stage.spare_bytes >= 0
        else f"{decimal(round(-stage.spare_bytes))} too much"
    )
    most = max(one.memory_bytes for one in prediction.stages)
    why = "needs the most" if stage.memory_bytes == most else "has the least to spare"
    lines.append(
        f"memory: stage {worst} {why}, {decimal(round(stage.memory_bytes))} on each of "
        f"its accelerators; {room}"
    )
    if solution.proven_optimal:
        lines.append("proven: nothing that this planner looks for has a smaller bound")
    elif solution.lower_bound:
        lines.append(
            f"not proven: no placement takes less than {seconds_text(solution.lower_bound)}; the "
            f"bound of this one is {seconds / solution.lower_bound - 1:.1%} above it"
        )
    if plan.next_best is not None:
        other = plan.next_best
        slower = other.prediction.seconds_per_minibatch
        difference = f" ({slower / seconds - 1:+.1%})" if seconds else ""
        lines.append(
            f"{'next best' if slower >= seconds else 'better'} by one change: "
            f"{other.change} ({other.placement.configuration}), {seconds_text(slower)}"
            f"{difference}, {other.prediction.bottleneck}"
        )
    if solution.note:
        lines.append(solution.note)
    return lines


def plans_table(
    plans: Sequence[Plan], simulated: Mapping[str, Proposal], failures: Mapping[str, str]
) -> RenderableType:
    """Show plans side by side, the fastest marked: simulated if any is, otherwise by the rule.

    ``failures`` are listed below them.
    """
    title = ""
    if plans:
        problem = plans[0].problem
        title = (
            f"{problem.workload.model} on {problem.cluster.accelerators} accelerators; seconds per "
            f"minibatch, simulated and as a bound: {_RULES[problem.costs]}"
        )
    table = Table(title=None, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("planner", no_wrap=True)
    table.add_column("configuration", overflow="fold", min_width=9)
    for column in ("simulated", "bound", "own\nformula", "bound\nof all"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("memory", justify="right")
    usable = [p for p in plans if not p.prediction.missing_bytes]

    def judged(plan: Plan) -> float:
        if not simulated:
            return plan.prediction.seconds_per_minibatch
        found = simulated.get(plan.method)
        return math.inf if found is None else found.seconds_per_minibatch

    fastest = min(map(judged, usable), default=None)
    for plan in plans:
        prediction, solution = plan.prediction, plan.solution
        bound = "–"
        if solution.lower_bound:
            bound = "proven" if solution.proven_optimal else seconds_text(solution.lower_bound)
        memory = decimal(round(prediction.stages[prediction.worst_memory].memory_bytes))
        best = plan in usable and fastest is not None and judged(plan) <= fastest * (1 + 1e-9)
        table.add_row(
            plan.method,
            plan.placement.configuration,
            simulated[plan.method].text if plan.method in simulated else "–",
            seconds_text(prediction.seconds_per_minibatch),
            "–" if solution.own_seconds is None else seconds_text(solution.own_seconds),
            bound,
            f"{memory} (too much)" if prediction.missing_bytes else memory,
            style="bold green" if best else None,
        )
    return Group(title, table, *(f"{name}: {reason}" for name, reason in failures.items()))


def write_plan(
    path: Path, plan: Plan, given: PlanningInput, method: Method, optimizer: OptimizerSpec
) -> str | None:
    """Write a plan as a placement.json, and return how to train with it if it is a model's.

    Raises:
        InvalidInput: if its stages cannot be run as a pipeline, or do not fit into memory, or the
            weight policy cannot train with them.
    """
    if plan.prediction.missing_bytes:
        raise InvalidInput(
            f"{plan.placement.configuration} misses {plan.prediction.missing_bytes:,.0f} bytes of "
            "memory; plan it with a method that keeps to the limit, such as exact"
        )
    cluster, graph = plan.problem.cluster, given.profile.graph
    reference = given.reference or ModelReference.recorded(graph.model)
    candidate = Candidate(plan.placement, method)
    write_document(
        path,
        PlacementFile.of(
            ExecutionPlan.of(candidate, graph, cluster.accelerators),
            reference,
            graph,
            cluster,
            optimizer=optimizer,
            found_by=plan.method,
        ),
    )
    if reference.name.startswith("<"):
        return None
    named = f"{shlex.quote(str(path))}{reference.naming_option}{optimizer.naming_option}"
    return f"train with it: drlpp train {named} --data {OWN_DATA}"


def _ranges(numbers: Sequence[int]) -> str:
    """Return ``0–3, 7`` for 0, 1, 2, 3, 7."""
    ranges = ranges_of(sorted(numbers))
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in ranges)
