"""The commands that need no workers, or only to profile: plan and profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from drlpp.planners import Choice, PlanningProblem, Proposal

BEST = "best"
"""The best that is simulated of what all quick planners propose."""

SEARCH = "search"
"""The best that a search in the simulator finds from there."""


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
            help="The planner (see --all); or best, in the simulator, of what all propose; or "
            "search, from there, with what --vary names."
        ),
    ] = BEST,
    vary: Annotated[
        str | None,
        typer.Option(
            help="For --method search: what it may choose with the placement, of depth, "
            "microbatches, recompute, schedule; or none.",
            show_default="depth, where the schedule has one",
        ),
    ] = None,
    max_staleness: Annotated[
        int | None,
        typer.Option(min=0, help="For --method search: the largest staleness of a stage."),
    ] = None,
    all_methods: Annotated[
        bool, typer.Option("--all", help="Compare all planners in a table.")
    ] = False,
    policy: Annotated[str | None, typer.Option(help=f"{POLICY_HELP}; decides memory.")] = None,
    method_option: MethodOptions = [],  # noqa: B006 - typer copies it
    in_flight: Annotated[
        str | None,
        typer.Option(
            metavar="auto|N",
            help="Parts in flight for each link between stages, beyond NOAM's one for each "
            "worker: a number (method option in_flight_per_link), or the fewest that the simulator "
            "finds enough.",
            show_default="auto, with --method best; otherwise 0",
        ),
    ] = None,
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
    seed: Annotated[int, typer.Option(min=0, help="Of planners that draw at random.")] = 0,
    time_limit: Annotated[float, typer.Option(min=0, help="Seconds that exact may search.")] = 60.0,
    size: SizeOption = Size.SMALL,
    model_option: ModelOptions = [],  # noqa: B006
) -> None:
    """Plan a placement, without running it, and explain it."""
    from contextlib import suppress
    from dataclasses import replace

    from drlpp.cli.planning.all_planners import show_all_planners
    from drlpp.cli.planning.compared_layouts import compared_layouts
    from drlpp.cli.planning.cutting import Cutting, note_many_operators
    from drlpp.cli.planning.plan_record import plan_record
    from drlpp.cli.planning.planning_input import PlanningInput
    from drlpp.cli.planning.planning_report import lateness, plan_report, write_plan
    from drlpp.costs.memory import MemoryModel
    from drlpp.planners import (
        PLANNERS,
        Space,
        best_searched,
        best_simulated,
        faster_unplanned,
        plan,
        played,
        read_vary,
        sharing_of,
    )
    from drlpp.planners.shared_weights import Sharing, choose_sharing
    from drlpp.schedule.method import Method
    from drlpp.schedule.method_choice import choose_method
    from drlpp.specs.optimizer_spec import OptimizerSpec

    console = build_console()
    if method not in (BEST, SEARCH, *PLANNERS):
        known = ", ".join((BEST, SEARCH, *PLANNERS))
        raise InvalidInput(f"planner {method!r} is unknown; there are {known}")
    if output is not None and all_methods:
        raise InvalidInput("-o writes one plan: leave out --all, or name one --method")
    if compare and all_methods:
        raise InvalidInput("--compare stands beside one plan: leave out --all")
    searches = method == SEARCH and not all_methods
    if not searches and (vary is not None or max_staleness is not None):
        raise InvalidInput("--vary and --max-staleness are what --method search looks at; add it")
    if searches and in_flight is not None:
        raise InvalidInput(
            "--method search looks for the depth itself: leave out --in-flight, or give "
            "--vary none and --method-option in_flight_per_link"
        )
    options = read_options(method_option, "method", "accumulate=4")
    automatic = in_flight == "auto"
    varied = None if vary is None else read_vary(vary)
    if searches and varied is None and "in_flight_per_link" in options:
        varied = frozenset()
    if in_flight is None and method == BEST and not all_methods:
        automatic = "in_flight_per_link" not in options
    elif automatic and all_methods:
        raise InvalidInput("--in-flight auto looks at one plan: leave out --all, or name a number")
    if in_flight is not None and "in_flight_per_link" in options:
        raise InvalidInput("in_flight_per_link is given twice, as --in-flight and --method-option")
    if in_flight is not None and not automatic:
        if not in_flight.isdecimal() or len(in_flight) > 4:
            raise InvalidInput(f"--in-flight {in_flight}: expected auto, or a number from 0")
        options["in_flight_per_link"] = int(in_flight)
    run = choose_method(policy, options, Method())
    updates = OptimizerSpec.parse(
        optimizer,
        parameter_groups(parameter_group),
        **optimizer_options(optimizer_option, None),
    )
    reading = f"profiling {model}" if profile is None else f"reading {profile}"
    with said_if_long(reading):
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
    problem = replace(given.problem, seed=seed, time_limit_seconds=time_limit)
    problem = replace(problem, memory=MemoryModel.of(run, updates))
    if no_replication:
        problem = replace(problem, replicate=False)
    cutting = None
    if cut_at is not CutAt.OPERATORS:
        cutting = Cutting.of(cut_at, given, problem, run)
        problem = cutting.problem
    else:
        note_many_operators(len(problem.workload))
    if all_methods:
        show_all_planners(console, problem, run, as_json=as_json)
        return
    choice: Choice | None = None
    proposal: Proposal | None = None
    faster: Proposal | None = None
    sharing: Sharing | None = None
    space: Space | None = None
    if searches:
        space = Space(run, varied, max_staleness, given.profile.batch_size)
        with said_if_long("planning with all planners, and searching in the simulator"):
            searched = best_searched(problem, space)
        choice, run = searched.choice, searched.found.candidate.method
        proposal, chosen = choice.best, choice.best.plan
        if problem.workload.ties:
            sharing = sharing_of(choice)
    elif method == BEST:
        with said_if_long("planning with all planners, and simulating"):
            choice = best_simulated(problem, run, deepen=automatic)
        proposal, chosen = choice.best, choice.best.plan
        if problem.workload.ties:
            sharing = sharing_of(choice)
    else:
        with said_if_long(f"planning with {method}"):
            chosen = plan(method, problem)
        if problem.workload.ties:
            with said_if_long("simulating plans with and without copies of weights"):
                sharing = choose_sharing(chosen, run)
            chosen = sharing.plan
        with suppress(*(() if automatic else (InvalidInput,))), said_if_long("simulating"):
            proposal = played(chosen, run, deepen=automatic)
            chosen = proposal.plan
            faster = faster_unplanned(proposal, run, deepen=automatic)
    cut_costs: str | None = None
    of_operators = chosen
    if cutting is not None:
        of_operators = cutting.expanded(chosen, run)
        if proposal is not None:

            def planned_alike(whole: PlanningProblem) -> Proposal:
                if space is not None:
                    return best_searched(whole, space).choice.best
                if method == BEST:
                    return best_simulated(whole, run, deepen=automatic).best
                return played(plan(method, whole), run, deepen=automatic)

            with said_if_long("planning with cuts between operators"):
                cut_costs = cutting.costs(proposal, planned_alike, run)
    layouts = compared_layouts(compare, given, of_operators, run, deepen=automatic)
    if automatic and proposal is not None:
        run = run.model_copy(update={"in_flight_per_link": proposal.depth.per_link})
    late = lateness(given.profile, proposal, run)
    if as_json:
        record = plan_record(chosen, proposal, choice, sharing, faster)
        if late is not None:
            record["staleness"] = late
        if cut_costs is not None:
            record["cut_at"] = cut_costs
        if layouts:
            record["compared"] = [layout.record() for layout in layouts]
        console.print_json(data=record)
    else:
        console.print(plan_report(chosen, proposal, choice, sharing, faster))
        if late is not None:
            console.print(late, soft_wrap=True)
        if cut_costs is not None:
            console.print(cut_costs, soft_wrap=True)
        for layout in layouts:
            planned = proposal.seconds_per_minibatch if proposal is not None else 0.0
            console.print(layout.line(planned), soft_wrap=True, markup=False)
    if output is not None:
        how_to_train = write_plan(output, of_operators, given, run, updates)
        console.print(f"written to {output}")
        if how_to_train is not None and not as_json:
            console.print(how_to_train, soft_wrap=True)
