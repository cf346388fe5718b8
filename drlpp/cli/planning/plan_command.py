"""``drlpp plan`` and ``drlpp profile``: the commands that need no workers, or only to profile."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from drlpp.cli.command_line import console, shown_if_long
from drlpp.cli.settings import (
    CLUSTER_FILES,
    MODEL,
    CostProfile,
    MethodSettings,
    ModelOptions,
    OptimizerSettings,
    Out,
    SearchSettings,
    Seed,
    Speeds,
    Workers,
    WorkerSettings,
    model_reference,
    option,
    read_speeds,
)
from drlpp.errors import InvalidInput, ModelNote
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.schedule.method import Method

if TYPE_CHECKING:
    from torch import nn

MANY_OPERATORS = 2_000
"""Cuts between more operators take planners minutes, and gigabytes."""


def profile_model(
    model: Annotated[str, MODEL],
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
    *,
    workers: WorkerSettings,
    out: Annotated[Path, Out],
) -> dict[str, Any]:
    """Measure what every operator of a model costs on a worker, and the links between workers.

    Writes the profile to --out, and cluster.yaml next to it unless there is one.
    """
    from drlpp.cli.showing.tables import describe
    from drlpp.io.documents import write_document
    from drlpp.runtime import ClusterSession

    reference = model_reference(model, model_option)
    of_session = workers.of_session(on_this_machine=2)
    with (
        shown_if_long(f"profiling {reference}"),
        ClusterSession(reference, note=console.print, **of_session) as session,
    ):
        profile, measured = session.profile()
    cluster = out.with_name("cluster.yaml")
    written = {out: profile} if cluster.exists() else {out: profile, cluster: measured}
    if cluster not in written:
        console.print(f"{cluster} exists already and stays as it is")
    for path, document in written.items():
        write_document(path, document)
        console.print(describe(document))
        console.print(f"written to {path}")
    return {
        "profile": str(out),
        "cluster": str(cluster) if cluster in written else None,
        "seconds_per_minibatch": sum(profile.seconds),
    }


def plan_placement(
    model: Annotated[str | None, MODEL] = None,
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
    *,
    profile: CostProfile = None,
    cluster: Annotated[Path | None, option("Accelerators: a cluster.yaml.", "CLUSTER")] = None,
    workers: Workers = None,
    bandwidth: Annotated[
        float | None,
        option("With --workers: bytes per second of the links between them.", "BYTES"),
    ] = None,
    speeds: Speeds = None,
    planner: Annotated[
        str,
        option(
            "search, in the simulator, from what the others propose; or data-parallel, gpipe, "
            "pipedream or exact alone.",
            "NAME",
        ),
    ] = "search",
    objective: Annotated[
        str,
        option(
            "What the search minimises for a minibatch: seconds, or dollars, by the prices in "
            "the cluster file.",
            "NAME",
        ),
    ] = "seconds",
    search: SearchSettings,
    method: MethodSettings,
    optimizer: OptimizerSettings,
    out: Annotated[Path | None, Out] = None,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Plan a placement without running it, and explain it. --out writes a placement.json.

    Without --profile the model is profiled here, on one worker; links that nobody has described
    (--cluster or --bandwidth) are measured between --workers.
    """
    from drlpp.cli.layouts import simulated_layouts
    from drlpp.cli.planning.plan_report import PlanReport
    from drlpp.costs.workload import Workload
    from drlpp.exporting.layouts.module_cuts import contracted_at
    from drlpp.io.documents import write_document
    from drlpp.planners import best_plan
    from drlpp.planners.plan import planning_problem
    from drlpp.planners.search import Judge
    from drlpp.specs.data import OWN_DATA

    chosen, updates = method.method(Method()), optimizer.spec()
    reference = None if model is None else model_reference(model, model_option)
    if reference is None and profile is None:
        raise InvalidInput("name what to plan: a model, or --profile for costs alone")
    if cluster is not None and cluster.suffix not in CLUSTER_FILES:
        raise InvalidInput(f"--cluster {cluster}: a plan needs a cluster.yaml, not an address")
    with shown_if_long(f"profiling {model}" if profile is None else f"reading {profile}"):
        problem, costs, captured = planning_problem(
            reference,
            workers,
            profile=profile,
            cluster=cluster,
            bandwidth=bandwidth,
            speeds=None if speeds is None else read_speeds(speeds),
            method=chosen,
            optimizer=updates,
            objective=objective,
            seed=seed,
        )

    def module() -> nn.Module:
        if captured is None:
            raise InvalidInput(
                f"--cut-at {search.cut_at} divides the model's modules: name the MODEL"
            )
        return captured.task.module

    space = search.space(chosen, method, costs.batch_size)
    planned, contracted = problem, None
    if search.cut_at is not CutAt.OPERATORS:
        contracted = contracted_at(search.cut_at, costs.graph, module)
        planned = replace(problem, workload=Workload.of(contracted.profile(costs), chosen))
    elif (operators := len(problem.workload)) > MANY_OPERATORS:
        warnings.warn(
            f"planning cuts between {operators} operators takes minutes; --cut-at blocks keeps "
            "what the model repeats whole, and takes less",
            ModelNote,
            stacklevel=2,
        )
    with shown_if_long(f"planning with {planner}"):
        found = best_plan(planned, space, planner)
    if objective != "seconds":
        # Others are told by their seconds.
        found = replace(found, others=())
    report = PlanReport.of(found, Judge(planned, space).problem_of(found.method), costs)
    whole = replace(
        found,
        placement=contracted.expanded(found.placement) if contracted else found.placement,
        graph=costs.graph,
        cluster=problem.cluster,
        optimizer=updates,
        model=captured,
    )
    own = None if captured is None else captured.task.module
    of_problem = own, costs.graph, problem, space, found.seconds_per_minibatch
    layouts = list(simulated_layouts(search.compare, *of_problem))
    console.print(report.text())
    if contracted is not None:
        console.print(f"cut between {len(planned.workload)} {search.cut_at}")
    if objective == "dollars":
        dollars = 1e6 * problem.per_second(whole.placement) * found.seconds_per_minibatch
        console.print(f"a million minibatches cost {dollars:,.2f} dollars")
    record = report.record()
    for line, compared in layouts:
        console.print(line)
        record.setdefault("compared", []).append(compared)
    if out is not None:
        document = whole.file()
        write_document(out, document)
        console.print(f"written to {out}")
        if not document.model.name.startswith("<"):
            named = shlex.quote(str(out)) + document.model.naming_option + updates.naming_option
            console.print(f"train with it: drlpp train {named} --data {OWN_DATA}")
    return record
