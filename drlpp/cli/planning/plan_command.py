"""``drlpp plan`` and ``drlpp profile``: the commands that need no workers, or only to profile."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import replace
from typing import Any

from drlpp.capturing.capture import CapturedModel
from drlpp.cli import arguments
from drlpp.cli.command_line import console
from drlpp.cli.layouts import candidate_of, module_of
from drlpp.cli.planning.plan_report import PlanReport, short_record
from drlpp.cli.settings import model_reference, read_speeds
from drlpp.cli.showing.tables import describe
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, ModelNote
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.exporting.layouts.module_cuts import contracted_at
from drlpp.io.documents import write_document
from drlpp.io.progress_lines import shown
from drlpp.placement.plan import Plan
from drlpp.planners import PlanningProblem, Space, Vary, simulated
from drlpp.planners.plan import plan_or_way_out, planning_problem, ways_of_training
from drlpp.planners.search import Judge
from drlpp.racing.rivals import YOURS
from drlpp.runtime import ClusterSession
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
    model, method, search, objective = given.model, given.method, given.search, given.objective
    chosen, updates = method.method(Method()), given.optimizer.spec()
    reference = None if model is None else model_reference(model, given.model_option)
    if reference is None and given.profile is None:
        raise InvalidInput("name what to plan: a model, or --profile for costs alone")
    doing = f"profiling {model}" if given.profile is None else f"reading {given.profile}"
    with shown(console, doing):
        problem, costs, captured = planning_problem(
            reference,
            given.workers,
            profile=given.profile,
            cluster=given.cluster,
            bandwidth=given.bandwidth,
            speeds=read_speeds(given.speeds),
            method=chosen,
            optimizer=updates,
            objective=objective,
            seed=given.seed,
        )

    space = search.space(chosen, method, costs.batch_size)
    planned, contracted = problem, None
    if search.cut_at is not CutAt.OPERATORS:
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
        found = plan_or_way_out(planned, space, given.planner, costs.batch_size, fixed)
    if objective != "seconds":
        # Others are told by their seconds.
        found = replace(found, others=())
    ways = ways_of_training(problem, costs.batch_size)
    report = PlanReport(found, Judge(planned, space).problem_of(found.method), costs, ways)
    whole = replace(
        found,
        placement=contracted.expanded(found.placement) if contracted else found.placement,
        graph=costs.graph,
        cluster=problem.cluster,
        optimizer=updates,
        model=captured,
    )
    compared = [_simulated(text, captured, problem, space, costs, found) for text in search.compare]
    console.print(report.text())
    if contracted is not None:
        console.print(f"cut between {len(planned.workload)} {search.cut_at}")
    if objective == "dollars":
        dollars = 1e6 * problem.per_second(whole.placement) * found.seconds_per_minibatch
        console.print(f"a million minibatches cost {dollars:,.2f} dollars")
    record = report.record()
    for line, layout in compared:
        console.print(line)
        record.setdefault("compared", []).append(layout)
    console.print(report.text_of_ways())
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
    """Simulate a layout beside the plan that was found, at the depth that suits it if it varies.

    Returns:
        A sentence about it, and the same as plain data.
    """
    workers = problem.cluster.accelerators
    candidate = candidate_of(text, captured, costs.graph, workers, space.method)
    try:
        own = simulated(problem, space, Plan(candidate.placement, found_by=YOURS))
    except InvalidInput as error:
        return f"{YOURS} {text}: {error}", {"layout": text, "error": str(error)}
    seconds, best = own.seconds_per_minibatch, found.seconds_per_minibatch
    slower = f", {seconds / best - 1:+.0%} against the plan" if best else ""
    return (
        f"{YOURS} {text}: {own.text} per minibatch (simulated){slower}",
        {"layout": text, **short_record(own)},
    )
