"""``drlpp plan`` and ``drlpp profile``: the commands that need no workers, or only to profile."""

from __future__ import annotations

import shlex
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drlpp.cli.command_line import build_console, said_if_long
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
    read_speeds,
)
from drlpp.errors import InvalidCluster, InvalidInput, ModelNote
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.schedule.method import Method

if TYPE_CHECKING:
    from torch import nn

    from drlpp.costs.contraction import ContractedGraph
    from drlpp.costs.profile import Profile
    from drlpp.models.model_reference import ModelReference
    from drlpp.placement.plan import Plan
    from drlpp.planners import PlanningProblem, Space
    from drlpp.specs.cluster import Cluster

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

    console = build_console()
    reference = model_reference(model, model_option)
    hosts = workers.hosts()
    count, emulated = workers.emulation(hosts, on_this_machine=2)
    with (
        said_if_long(f"profiling {reference}"),
        ClusterSession(
            reference,
            workers=count,
            speeds=emulated,
            note=console.print,
            **workers.of_session(hosts),
        ) as session,
    ):
        profile, measured = session.profile()
    cluster = out.with_name("cluster.yaml")
    written = {out: profile} if cluster.exists() else {out: profile, cluster: measured}
    if cluster not in written:
        console.print(f"{cluster} exists already and stays as it is", soft_wrap=True)
    for path, document in written.items():
        write_document(path, document)
        console.print(describe(document))
        console.print(f"written to {path}", soft_wrap=True)
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
    cluster: Annotated[
        Path | None, typer.Option(metavar="CLUSTER", help="Accelerators: a cluster.yaml.")
    ] = None,
    workers: Workers = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            metavar="BYTES", help="With --workers: bytes per second of the links between them."
        ),
    ] = None,
    speeds: Speeds = None,
    planner: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="search, in the simulator, from what the others propose; or data-parallel, gpipe, "
            "pipedream or exact alone.",
        ),
    ] = "search",
    objective: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What the search minimises for a minibatch: seconds, or dollars, by the prices in "
            "the cluster file.",
        ),
    ] = "seconds",
    search: SearchSettings,
    method: MethodSettings,
    optimizer: OptimizerSettings,
    out: Annotated[Path | None, Out] = None,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Plan a placement without running it, and explain it. --out writes a placement.json.

    Without --profile the model is profiled here, on one worker.
    """
    from drlpp.cli.layouts import simulated_layouts
    from drlpp.cli.planning.plan_report import PlanReport
    from drlpp.costs.memory import MemoryModel
    from drlpp.costs.workload import Workload
    from drlpp.io.documents import write_document
    from drlpp.planners import PlanningProblem, best_plan
    from drlpp.planners.search import Judge
    from drlpp.specs.data import OWN_DATA

    console = build_console()
    chosen = method.method(Method())
    updates = optimizer.spec()
    if profile is None and model is None:
        raise InvalidInput("name what to plan: a MODEL, or --profile FILE")
    reference = None if model is None else model_reference(model, model_option)
    hosts = read_cluster(cluster, workers, bandwidth, speeds)
    with said_if_long(f"profiling {model}" if profile is None else f"reading {profile}"):
        costs = _costs(profile, reference, chosen)
    memory = MemoryModel.of(chosen, updates)
    problem = PlanningProblem(
        Workload.of(costs, chosen), hosts, seed=seed, memory=memory, objective=objective
    )
    space = search.space(chosen, method, costs.batch_size)
    cutting = None
    if search.cut_at is not CutAt.OPERATORS:
        cutting = Cutting.of(search.cut_at, costs, reference, problem, chosen)
    elif (operators := len(problem.workload)) > MANY_OPERATORS:
        warnings.warn(
            f"planning cuts between {operators} operators takes minutes; --cut-at blocks keeps "
            "what the model repeats whole, and takes less",
            ModelNote,
            stacklevel=2,
        )
    planned = problem if cutting is None else cutting.problem
    with said_if_long(f"planning with {planner}"):
        found = best_plan(planned, space, planner)
    if objective != "seconds":
        # Others are told by their seconds.
        found = replace(found, others=())
    report = PlanReport.of(found, Judge(planned, space).problem_of(found.method), costs)
    if cutting is not None:
        with said_if_long("planning with cuts between operators"):
            report = replace(report, cut_at=cutting.costs(found, space, planner))
        found = cutting.expanded(found)
    module = reference.build().module if search.compare and reference is not None else None
    seconds = found.seconds_per_minibatch
    layouts = list(simulated_layouts(search.compare, module, costs.graph, problem, space, seconds))
    console.print(report.text())
    if objective == "dollars":
        dollars = 1e6 * problem.per_second(found.placement) * seconds
        console.print(f"a million minibatches cost {dollars:,.2f} dollars")
    for line in (*report.lines(), *(line for line, _ in layouts)):
        console.print(line, soft_wrap=True, markup=False)
    if out is not None:
        whole = replace(
            found, graph=costs.graph, cluster=problem.cluster, optimizer=updates, model=reference
        )
        document = whole.file()
        write_document(out, document)
        console.print(f"written to {out}", soft_wrap=True)
        if not document.model.name.startswith("<"):
            named = shlex.quote(str(out)) + document.model.naming_option + updates.naming_option
            console.print(f"train with it: drlpp train {named} --data {OWN_DATA}", soft_wrap=True)
    record = report.record()
    if layouts:
        record["compared"] = [record for _, record in layouts]
    return record


def read_cluster(
    path: Path | None, workers: int | None, bandwidth: float | None, speeds: str | None
) -> Cluster:
    """Read a cluster.yaml, or make equal accelerators of one machine by numbers.

    Raises:
        InvalidInput: if something is missing, contradicts itself, or cannot be read.
    """
    from drlpp.io.documents import read_document
    from drlpp.specs.cluster import Cluster, Link, local_cluster

    relative = None if speeds is None else read_speeds(speeds)
    if path is not None:
        if workers is not None or bandwidth is not None:
            raise InvalidInput(
                "a cluster.yaml says how many accelerators there are, and their links; leave out "
                "--workers and --bandwidth"
            )
        if path.suffix not in CLUSTER_FILES:
            raise InvalidInput(f"--cluster {path}: a plan needs a cluster.yaml, not an address")
        cluster = read_document(path, Cluster)
        return cluster if relative is None else cluster.with_speeds(relative)
    if workers is None or bandwidth is None:
        raise InvalidInput(
            "name the accelerators: --cluster cluster.yaml, or --workers and --bandwidth (bytes "
            "per second)"
        )
    if not 1e-3 <= bandwidth <= 1e300:
        raise InvalidCluster(f"bandwidth is {bandwidth:g}; it must be a number above 0")
    return local_cluster(workers, Link(bandwidth_bytes_per_second=bandwidth), relative)


def _costs(path: Path | None, model: ModelReference | None, method: Method) -> Profile:
    """Read a profile; without one the model is profiled here.

    Raises:
        InvalidInput: it cannot be read, or is of another model.
    """
    from drlpp.capturing.capture import capture
    from drlpp.costs.cost_table import read_profile
    from drlpp.runtime import ClusterSession

    if path is None:
        assert model is not None
        with ClusterSession(model, workers=1, method=method) as session:
            return session.profile()[0]
    profile = read_profile(path)
    if model is not None:
        graph = capture(model, check=False).graph
        if graph.fingerprint != profile.graph.fingerprint:
            raise InvalidInput(
                f"the profile is of {profile.graph.model} (graph {profile.graph.fingerprint}), but "
                f"{model} has graph {graph.fingerprint}; profile this model again"
            )
    return profile


@dataclass(frozen=True)
class Cutting:
    """A problem of modules or blocks, made of one of operators.

    Attributes:
        cut_at: what stays whole.
        contracted: the graph.
        whole: the problem of operators.
        problem: that of modules.
    """

    cut_at: CutAt
    contracted: ContractedGraph
    whole: PlanningProblem
    problem: PlanningProblem

    @classmethod
    def of(
        cls,
        cut_at: CutAt,
        profile: Profile,
        model: ModelReference | None,
        whole: PlanningProblem,
        method: Method,
    ) -> Cutting:
        """Contract a problem.

        Raises:
            InvalidInput: no model is named, or it has nothing of the kind.
        """
        from drlpp.costs.workload import Workload
        from drlpp.exporting.layouts.module_cuts import contracted_at

        def build() -> nn.Module:
            if model is None:
                raise InvalidInput(f"--cut-at {cut_at} divides the model's modules: name the MODEL")
            return model.build().module

        contracted = contracted_at(cut_at, profile.graph, build)
        workload = Workload.of(contracted.profile(profile), method)
        return cls(cut_at, contracted, whole, replace(whole, workload=workload))

    def expanded(self, found: Plan) -> Plan:
        """Return a plan of modules as one of operators."""
        return replace(found, placement=self.contracted.expanded(found.placement))

    def costs(self, found: Plan, space: Space, planner: str) -> str:
        """Return a sentence that compares a plan with the same planner's cuts between operators.

        Where there are too many operators to plan for soon, it says that instead.
        """
        from drlpp.io.formatting import predicted_text
        from drlpp.planners import best_plan
        from drlpp.planners.search import Judge

        between = f"cut between {len(self.problem.workload)} {self.cut_at}"
        operators = len(self.whole.workload)
        if operators > MANY_OPERATORS:
            return (
                f"{between}; not compared with cuts between all {operators} operators, which take "
                "long to plan"
            )
        finer = best_plan(self.whole, space, planner)
        seconds = Judge(self.whole, space).exactly(self.expanded(found).candidate)
        own, least = predicted_text(seconds, found.error_bar), finer.seconds_per_minibatch
        return (
            f"{between}: {own} per minibatch; between {operators} operators "
            f"{finer.configuration} takes {finer.text}, so whole {self.cut_at} cost "
            f"{seconds / least - 1:+.1%} (simulated)"
        )
