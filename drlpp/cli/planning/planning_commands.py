"""The commands that need no workers, or only to profile: plan and profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from drlpp.cli.command_line import (
    MODEL_HELP,
    OPTIMIZER_HELP,
    POLICY_HELP,
    AcceleratorsOption,
    BandwidthOption,
    ClusterOption,
    CompareOptions,
    CutAtOption,
    DeviceOption,
    GroupOptions,
    HostsOption,
    LatencyOption,
    MethodOptions,
    ModelOptions,
    OptimizerOptions,
    Size,
    SizeOption,
    TimeoutOption,
    build_console,
    model_reference,
    optimizer_options,
    parameter_groups,
    read_hosts,
    read_options,
    said_if_long,
)
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.specs.device_choice import DeviceChoice


def profile_model(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the profile.")],
    write_cluster: Annotated[
        Path | None, typer.Option(help="Also write the cluster, with the measured link, here.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Of the cluster; 2, or all that --cluster has."),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Timed passes of every operator; fewer if they take long.")
    ] = 20,
    device: DeviceOption = DeviceChoice.AUTO,
    cluster: ClusterOption = None,
    hosts: HostsOption = None,
    timeout: TimeoutOption = None,
    size: SizeOption = Size.SMALL,
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
) -> dict[str, Any]:
    """Measure what every operator of a model costs on a worker, and the link between workers."""
    from drlpp.cli.showing.tables import describe
    from drlpp.io.documents import write_document
    from drlpp.runtime import ClusterSession, default_num_workers

    reference = model_reference(model, size, model_option)
    if cluster is not None and cluster.endswith((".yaml", ".yml", ".json")):
        raise InvalidInput(
            f"--cluster {cluster}: expected the address of a Ray cluster; a file to write the "
            "cluster to is --write-cluster"
        )
    console = build_console()
    wanted = read_hosts(hosts)
    gpus = device is not DeviceChoice.CPU
    workers = workers or default_num_workers(
        on_this_machine=2, cluster=cluster, hosts=wanted, gpus=gpus
    )
    with (
        said_if_long(f"profiling {reference}"),
        ClusterSession(
            reference,
            workers=workers,
            device=device,
            cluster=cluster,
            hosts=wanted,
            timeout_seconds=timeout,
            note=console.print,
        ) as session,
    ):
        profile, measured = session.profile(repeats)
    write_document(output, profile)
    console.print(describe(profile))
    console.print(f"written to {output}")
    if write_cluster is not None:
        write_document(write_cluster, measured)
        console.print(describe(measured))
        console.print(f"written to {write_cluster}")
    return {
        "profile": str(output),
        "cluster": None if write_cluster is None else str(write_cluster),
        "seconds_per_minibatch": sum(profile.seconds),
    }


def plan_placement(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Costs: a profile.json, or a table (.csv). Without it "
            "MODEL is profiled here, on one worker."
        ),
    ] = None,
    cluster: Annotated[Path | None, typer.Option(help="A cluster.yaml.")] = None,
    accelerators: AcceleratorsOption = None,
    bandwidth: BandwidthOption = None,
    latency: LatencyOption = None,
    memory: Annotated[
        float | None, typer.Option(help="Of each accelerator, in bytes; else not limited.")
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(help="Relative speeds of the accelerators, such as 1,1,0.5,0.5."),
    ] = None,
    no_replication: Annotated[
        bool, typer.Option("--no-replication", help="One accelerator for each stage.")
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            help="Planner: search, in the simulator, from what the others propose; or "
            "data-parallel, gpipe, pipedream or exact alone."
        ),
    ] = "search",
    vary: Annotated[
        str | None,
        typer.Option(
            help="What the search may choose with the placement, of depth, microbatches, "
            "recompute, schedule; or none.",
            show_default="depth, where the schedule has one",
        ),
    ] = None,
    max_staleness: Annotated[
        int | None, typer.Option(min=0, help="The largest staleness of a stage.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help=f"{POLICY_HELP}; decides memory.")] = None,
    method_option: MethodOptions = [],  # noqa: B006 - typer copies it
    optimizer: Annotated[str, typer.Option(help=f"{OPTIMIZER_HELP}; likewise.")] = "adam",
    optimizer_option: OptimizerOptions = [],  # noqa: B006
    parameter_group: GroupOptions = [],  # noqa: B006
    cut_at: CutAtOption = CutAt.OPERATORS,
    compare: CompareOptions = [],  # noqa: B006 - typer copies it
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write a placement.json.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the search.")] = 0,
    size: SizeOption = Size.SMALL,
    model_option: ModelOptions = [],  # noqa: B006
) -> None:
    """Plan a placement, without running it, and explain it."""
    import shlex
    from dataclasses import replace

    from drlpp.cli.planning.compared_layouts import compared_layouts
    from drlpp.cli.planning.cutting import Cutting, note_many_operators
    from drlpp.cli.planning.planning_input import PlanningInput
    from drlpp.cli.planning.planning_report import PlanReport
    from drlpp.costs.memory import MemoryModel
    from drlpp.io.documents import write_document
    from drlpp.planners import Space, best_plan, read_vary
    from drlpp.planners.candidates import Judge
    from drlpp.schedule.method import Method
    from drlpp.schedule.method_choice import choose_method
    from drlpp.specs.data import OWN_DATA
    from drlpp.specs.optimizer_spec import OptimizerSpec

    console = build_console()
    options = read_options(method_option, "method", "accumulate=4")
    varied = None if vary is None else read_vary(vary)
    if varied is None and "in_flight_per_link" in options:
        varied = frozenset()
    run = choose_method(policy, options, Method())
    updates = OptimizerSpec.parse(
        optimizer,
        parameter_groups(parameter_group),
        **optimizer_options(optimizer_option, None),
    )
    with said_if_long(f"profiling {model}" if profile is None else f"reading {profile}"):
        given = PlanningInput.read(
            model=None if model is None else model_reference(model, size, model_option),
            profile=profile,
            cluster=cluster,
            accelerators=accelerators,
            bandwidth=bandwidth,
            latency=latency,
            memory=memory,
            speeds=speeds,
            method=run,
        )
    problem = replace(
        given.problem,
        seed=seed,
        memory=MemoryModel.of(run, updates),
        replicate=not no_replication,
    )
    space = Space(run, varied, max_staleness, given.profile.batch_size)
    cutting = None
    if cut_at is CutAt.OPERATORS:
        note_many_operators(len(problem.workload))
    else:
        cutting = Cutting.of(cut_at, given, problem, run)
    with said_if_long(f"planning with {method}"):
        found = best_plan(problem if cutting is None else cutting.problem, space, method)
    planned = Judge(problem if cutting is None else cutting.problem, space).problem_of(found.method)
    report = PlanReport.of(found, planned, given.profile)
    if cutting is not None:
        with said_if_long("planning with cuts between operators"):
            report = replace(report, cut_at=cutting.costs(found, space, method))
        found = cutting.expanded(found)
    layouts = compared_layouts(compare, given, problem, space)
    if as_json:
        record = report.record()
        if layouts:
            record["compared"] = [layout.record() for layout in layouts]
        console.print_json(data=record)
    else:
        console.print(report.text())
        for line in report.lines():
            console.print(line, soft_wrap=True)
        for layout in layouts:
            line = layout.line(found.seconds_per_minibatch)
            console.print(line, soft_wrap=True, markup=False)
    if output is not None:
        whole = replace(
            found,
            graph=given.profile.graph,
            cluster=problem.cluster,
            optimizer=updates,
            model=given.reference,
        )
        document = whole.file()
        write_document(output, document)
        console.print(f"written to {output}")
        if not (as_json or document.model.name.startswith("<")):
            named = f"{shlex.quote(str(output))}{document.model.naming_option}"
            named += updates.naming_option
            line = f"train with it: drlpp train {named} --data {OWN_DATA}"
            console.print(line, soft_wrap=True)
