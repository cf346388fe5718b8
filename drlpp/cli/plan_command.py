"""``drlpp plan`` and ``drlpp profile``: the commands that need no workers, or only to profile.

A plan is explained as a table and sentences for readers, and as plain data for scripts.
"""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.filesize import decimal

from drlpp.capturing.capture import CapturedModel
from drlpp.cli import arguments
from drlpp.cli.command_line import console
from drlpp.cli.descriptions import describe, names_text
from drlpp.cli.layouts import candidate_of, module_of
from drlpp.cli.settings import model_reference
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.profile import Profile
from drlpp.costs.ways_of_training import WaysOfTraining
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, ModelNote
from drlpp.exporting.layouts.module_cuts import contracted_at
from drlpp.io.documents import write_document
from drlpp.io.formatting import seconds_text
from drlpp.io.progress_lines import shown
from drlpp.placement.plan import CLEARLY, Plan
from drlpp.planners import PLANNERS, PlanningProblem, Space, Vary, objective_for, simulated
from drlpp.planners.map import Cell, map_of_ways, ways_of_training
from drlpp.planners.plan import cluster_of, plan_or_way_out, planning_problem
from drlpp.planners.planning import check_planner
from drlpp.planners.search import Judge
from drlpp.racing.rivals import YOURS
from drlpp.report.tables import Table, map_table
from drlpp.runtime import ClusterSession
from drlpp.schedule.analysis.staleness import samples_factor, staleness_text
from drlpp.schedule.method import Method
from drlpp.specs.data import OWN_DATA

MANY_OPERATORS = 2_000
"""Cuts between more operators take planners minutes, and gigabytes."""


def profile(given: arguments.Profile) -> dict[str, Any]:
    """Run ``drlpp profile``."""
    reference, out = model_reference(given.model, given.model_option), given.out
    of_session = given.workers.of_session(on_this_machine=2)
    with (
        shown(console, f"profiling {reference}"),
        ClusterSession(reference, note=console.print, **of_session) as session,
    ):
        measured, hosts = session.profile()
    cluster = out.with_name("cluster.yaml")
    written = {out: measured} if cluster.exists() else {out: measured, cluster: hosts}
    if cluster not in written:
        console.print(f"{cluster} exists already and stays as it is")
    for path, document in written.items():
        write_document(path, document)
        console.print(describe(document))
        console.print(f"written to {path}")
    return {
        "profile": str(out),
        "cluster": str(cluster) if cluster in written else None,
        "seconds_per_minibatch": sum(measured.seconds),
    }


def plan(given: arguments.Plan) -> dict[str, Any]:
    """Run ``drlpp plan``."""
    model, method, search = given.model, given.method, given.search
    chosen, updates = method.method(Method()), given.optimizer.spec()
    objective = objective_for(chosen, search.objective)
    # What cannot be is said before anything is measured.
    check_planner(given.planner)
    search.space(chosen, method)
    reference = None if model is None else model_reference(model, given.model_option)
    if reference is None and given.profile is None:
        raise InvalidInput("name what to plan: a model, or --profile for costs alone")
    doing = f"profiling {model}" if given.profile is None else f"reading {given.profile}"
    with shown(console, doing):
        known = cluster_of(given.workers, given.cluster, given.bandwidth)
        problem, costs, captured = planning_problem(
            reference,
            given.profile,
            known or given.workers,
            chosen,
            updates,
            objective,
            given.seed,
        )

    space = search.space(chosen, method, costs)
    planned, contracted = problem, None
    if search.cut_at != "operators":
        option = f"--cut-at {search.cut_at}"
        contracted = contracted_at(search.cut_at, costs.graph, lambda: module_of(captured, option))
        planned = replace(problem, workload=Workload.of(contracted.profile(costs), chosen))
    elif (operators := len(problem.workload)) > MANY_OPERATORS:
        warnings.warn(
            f"planning cuts between {operators} operators takes minutes; --cut-at blocks keeps "
            "what the model repeats whole, and takes less",
            ModelNote,
            stacklevel=2,
        )
    with shown(console, f"planning with {given.planner}"):
        fixed = method.options if search.vary is None else set(Vary)
        found = plan_or_way_out(planned, space, given.planner, fixed)
    cells = map_of_ways(found, planned, costs)
    if objective == "dollars":
        # Others are told by their seconds.
        found = replace(found, others=())
    ways = ways_of_training(problem, costs.batch_size)
    solved = Judge(planned, space).problem_of(found.method)
    report = PlanReport(found, solved, costs, ways, cells)
    whole = replace(
        found,
        placement=contracted.expanded(found.placement) if contracted else found.placement,
        graph=costs.graph,
        cluster=problem.cluster,
        optimizer=updates,
        model=captured,
        ways=tuple(ways.best()),
    )
    compared = [_simulated(text, captured, problem, space, costs, whole) for text in search.compare]
    console.print(report.text())
    if contracted is not None:
        console.print(f"cut between {len(planned.workload)} {search.cut_at}")
    if objective == "dollars":
        dollars = 1e6 * problem.per_second(whole.candidate) * found.seconds_per_minibatch
        console.print(f"a million minibatches cost {dollars:,.2f} dollars")
    record = report.record()
    for line, layout in compared:
        console.print(line)
        record.setdefault("compared", []).append(layout)
    console.print(report.text_of_ways(whole.verdict))
    if (out := given.out) is not None:
        document = whole.file()
        write_document(out, document)
        console.print(f"written to {out}")
        if not document.model.name.startswith("<"):
            named = shlex.quote(str(out)) + document.model.naming_option + updates.naming_option
            console.print(f"train with it: drlpp train {named} --data {OWN_DATA}")
    return record


def _simulated(
    text: str,
    captured: CapturedModel | None,
    problem: PlanningProblem,
    space: Space,
    costs: Profile,
    found: Plan,
) -> tuple[str, dict[str, Any]]:
    """Simulate a layout beside the plan that was found, with its microbatches.

    Returns:
        A sentence about it, and the same as plain data.
    """
    workers = problem.cluster.accelerators
    parts = found.method.microbatches
    space = replace(space, method=space.method.model_copy(update={"microbatches": parts}))
    problem = replace(problem, workload=problem.workload.with_method(space.method))
    candidate = candidate_of(text, captured, costs.graph, workers, space.method)
    try:
        own = simulated(problem, space, Plan(candidate.placement, found_by=YOURS))
    except InvalidInput as error:
        return f"{YOURS} {text}: {error}", {"layout": text, "error": str(error)}
    seconds, best = (
        one.seconds_per_minibatch * problem.per_second(one.candidate) for one in (own, found)
    )
    told = " to the same loss" * (problem.objective == "loss")
    known = best and math.isfinite(seconds)
    slower = f", {seconds / best - 1:+.0%} against the plan{told}" if known else ""
    return (
        f"{YOURS} {text}: {own.text} per minibatch (simulated){slower}",
        {"layout": text, **short_record(own)},
    )


_WORTH_SAYING = 1.05
"""Times as fast to a loss as the plan, so that another pipeline is named."""


class PlanReport:
    """What there is to say of a plan.

    Args:
        plan: what was found.
        problem: that it is a plan of, under the plan's method.
        profile: that the problem is made of.
        ways: of training it without a pipeline.
        cells: of the map.
    """

    def __init__(
        self,
        plan: Plan,
        problem: PlanningProblem,
        profile: Profile,
        ways: WaysOfTraining,
        cells: Sequence[Cell],
    ) -> None:
        self._plan, self._problem, self._cells = plan, problem, cells
        self._ways, self._best_ways = ways, ways.best()
        self._prediction = problem.predict(plan.placement)
        placed = PlacedStages(problem.workload, plan.placement)
        self._staleness = staleness_text(
            placed.pipeline, plan.method, profile.batch_size, problem.optimizer
        )
        self._samples = samples_factor(placed.pipeline, plan.method, problem.optimizer)
        self._together = plan.method.minibatches_together(placed.pipeline)
        stages = zip(plan.placement.stages, self._prediction.stages, strict=True)
        self._stages = [
            ([problem.workload.names[op] for op in stage.operators], stage.accelerators, predicted)
            for stage, predicted in stages
        ]

    def record(self) -> dict[str, Any]:
        """Return the plan as plain data.

        ``seconds_per_minibatch`` is the bound by the rule. ``error_bar`` is how far off the
        simulated seconds may be, as a share of them, and null where no short runs tell it.
        """
        plan, prediction = self._plan, self._prediction
        told = "steadiness", "planner_seconds", "note"
        bound = "seconds_per_minibatch", "bottleneck", "missing_bytes"
        return {
            **short_record(plan),
            **{name: getattr(plan, name) for name in told},
            **{name: getattr(prediction, name) for name in bound},
            "others": [short_record(other) for other in plan.others],
            **{name: getattr(self._ways, name) for name in ("weights_ratio", "memory_ratio")},
            "ways_of_training": [asdict(one) for one in self._best_ways],
            "map": [asdict(replace(cell, candidate=None)) for cell in self._cells],
            "stages": [
                {"operators": names, **predicted.model_dump()}
                for names, _, predicted in self._stages
            ],
            "staleness": self._staleness,
        }

    def text(self) -> RenderableType:
        """Return the stages, what limits speed and memory, how sure it is, what else was found."""
        plan, problem, bound = self._plan, self._problem, self._prediction.seconds_per_minibatch
        above = plan.seconds_per_minibatch / bound - 1 if bound else 0
        return Group(
            f"{problem.workload.model} on {problem.cluster.accelerators} accelerators, planned by "
            f"{plan.found_by} in {seconds_text(plan.planner_seconds)}: {plan.configuration}, "
            f"{plan.method}",
            f"simulated: {plan.text} per minibatch in steady state"
            + (f", {max(above, 0):.1%} above the rule's bound" if bound else ""),
            self._table(),
            f"bound: {seconds_text(bound)} per minibatch, {self._prediction.bottleneck}",
            *self._explanations(),
        )

    def text_of_ways(self, verdict: str) -> RenderableType:
        """Return what this plan and other ways of training take, and which one to take."""
        tables = [map_table(self._cells)] if self._cells else []
        return Group(self._table_of_ways(), *self._advice(verdict), *tables)

    def _table_of_ways(self) -> Table:
        """Return what this plan and other ways of training take, the fastest first."""
        plan, notes = self._plan, []
        if self._samples > 1:
            notes.append(f"about {self._samples:.1f}× the samples")
        if self._together > 1:
            notes.append(f"{self._together} minibatches an update")
        memory = max(stage.memory_bytes for stage in self._prediction.stages)
        here, held = plan.seconds_per_minibatch, plan.placement.accelerators
        rows = [(False, here, "this plan", held, memory, ", ".join(notes))]
        for one in self._best_ways:
            note = f"{one.passes} passes" if one.passes > 1 else ""
            if one.way.approximates:
                averaged = f"weights averaged every {one.every} minibatches, " * one.way.local
                note = f"{averaged}about {one.samples:.1f}× the samples"
            seconds, held = one.seconds_per_minibatch, one.accelerators
            rows.append((not one.fits, seconds, one.name, held, one.memory_bytes, note))
        rows.sort(key=lambda row: row[:2])
        best = rows[0][1] or 1.0
        columns = ["predicted", ">accelerators", ">a minibatch", ">over the best"]
        columns += [">memory of each", "fits", ""]
        cells = [
            [
                name,
                str(len(held)),
                seconds_text(seconds),
                f"{seconds / best:.2f}",
                decimal(round(bytes_)),
                "no" if too_large else "yes",
                note,
            ]
            for too_large, seconds, name, held, bytes_, note in rows
        ]
        return Table(columns, cells)

    def _advice(self, verdict: str) -> Iterator[str]:
        """Yield what links cost data parallelism, and which way to take."""
        ratio, of_all = float(f"{self._ways.weights_ratio:.2g}"), self._ways.of_all()
        waits = ""
        if of_all is not None:
            waits = (
                f": data parallelism over all {len(of_all.accelerators)} waits for its links "
                f"{of_all.waiting_share:.0%} of the time"
            )
        yield f"R_w = {ratio:g} (all weights over a link / a minibatch on one){waits}"
        own = next((cell for cell in self._cells if cell.own), None)
        seconds = self._plan.seconds_per_minibatch * self._samples
        if own and own.candidate and own.seconds * _WORTH_SAYING < seconds:
            yield (
                f"{own.candidate.configuration} with {own.candidate.method}: predicted "
                f"{seconds / own.seconds:.2f}× faster to the same loss than this plan"
                + " (--objective loss)"
                * (self._problem.objective != "loss")
            )
        else:
            yield verdict

    def _table(self) -> Table:
        rows = [
            [
                str(number),
                ", ".join(map(str, accelerators)),
                names_text(names),
                seconds_text(predicted.compute_seconds),
                seconds_text(predicted.all_reduce_seconds),
                seconds_text(predicted.message_seconds),
                str(predicted.in_flight),
                decimal(round(predicted.memory_bytes)),
            ]
            for number, (names, accelerators, predicted) in enumerate(self._stages)
        ]
        columns = ["stage", "accelerators", "operators"]
        columns += [">compute", ">all-reduce", ">messages", ">in flight", ">memory"]
        return Table(columns, rows)

    def _explanations(self) -> Iterator[str]:
        plan, worst = self._plan, self._prediction.worst_memory
        stage = self._prediction.stages[worst]
        room, spare = "no limit is known", stage.spare_bytes
        if spare is not None:
            room = f"{decimal(round(abs(spare)))} {'to spare' if spare >= 0 else 'too much'}"
        yield (
            f"memory: stage {worst} is the tightest, {decimal(round(stage.memory_bytes))} on each "
            f"of its accelerators; {room}"
        )
        if plan.note:
            yield plan.note
        best: dict[str, Plan] = {}
        for other in plan.others:
            best.setdefault(other.found_by, other)
        if best:
            found = ", ".join(
                f"{name} {one.configuration} {one.text}" for name, one in best.items()
            )
            yield f"also proposed (simulated): {found}"
        fastest = min(plan.others, key=lambda one: one.seconds_per_minibatch, default=plan)
        if plan.seconds_per_minibatch > CLEARLY * fastest.seconds_per_minibatch > 0:
            name = f"{fastest.found_by} {fastest.configuration} has a faster minibatch"
            if plan.found_by in PLANNERS:
                yield f"{name}; leave out --planner, with --objective seconds for the fastest"
            elif math.isinf(self._problem.per_second(fastest.candidate)):
                yield f"{name}, but updates of several, which are not judged (--objective seconds)"
            else:
                yield f"{name}, but later weights (--objective seconds)"
        if self._staleness is not None:
            yield self._staleness


def short_record(plan: Plan) -> dict[str, Any]:
    """Return a plan among others, as plain data."""
    return {
        "method": plan.found_by,
        "configuration": plan.configuration,
        "in_flight_per_link": plan.method.in_flight_per_link,
        "simulated_seconds_per_minibatch": plan.seconds_per_minibatch,
        "error_bar": plan.error_bar or None,
    }
