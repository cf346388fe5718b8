"""``drlpp timeline``: where the time of a placement goes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from drlpp.cli.command_line import (
    POLICY_HELP,
    AcceleratorsOption,
    BandwidthOption,
    LatencyOption,
    MethodOptions,
    ModelOptions,
    SameModelOption,
    TimeoutOption,
    build_console,
    read_options,
    same_model,
)
from drlpp.errors import InvalidInput


class Source(StrEnum):
    """What a timeline can come from."""

    SCHEDULE = "schedule"
    SIMULATOR = "simulator"
    RUN = "run"


def show_timeline(
    placement: Annotated[Path, typer.Argument(help="A placement.json.")],
    source: Annotated[
        Source,
        typer.Option(
            "--from",
            help="schedule: every forward takes 1, every backward 2; simulator: predicted from "
            "--profile; run: measured on workers of this machine.",
        ),
    ] = Source.SCHEDULE,
    minibatches: Annotated[
        int,
        typer.Option(
            min=1, max=100_000, help="Of the window that is measured; others run around it."
        ),
    ] = 8,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="A picture (.png, .svg), or a trace for Perfetto (.json).",
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(help=f"{POLICY_HELP}; else as measured.")] = None,
    method_option: MethodOptions = [],  # noqa: B006 - typer copies it
    profile: Annotated[
        Path | None, typer.Option(help="Costs for the simulator: a profile.json of the model.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="For --from simulator a cluster.yaml, else that of the placement; for --from run "
            "the address of a Ray cluster (auto, HOST:PORT, ray://HOST:PORT), else this machine."
        ),
    ] = None,
    accelerators: AcceleratorsOption = None,
    bandwidth: BandwidthOption = None,
    latency: LatencyOption = None,
    speeds: Annotated[
        str | None,
        typer.Option(
            help="Relative speeds of the accelerators, such as 1,1,0.5,0.5; workers emulate them."
        ),
    ] = None,
    timeout: TimeoutOption = None,
    model: SameModelOption = None,
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
) -> dict[str, Any]:
    """Show what every worker of a placement does when, and how much of its time that takes."""
    from drlpp.cli.planning.planning_input import read_cluster, read_speeds
    from drlpp.cli.timeline.timeline_report import (
        check_ending,
        time_use_record,
        time_use_table,
        write_timeline,
    )
    from drlpp.cli.timeline.timeline_sources import from_run, from_schedule, from_simulator
    from drlpp.placement.placement_file import read_placement
    from drlpp.schedule.method_choice import choose_method

    if output is not None:
        check_ending(output)
        if output.resolve() == placement.resolve():
            raise InvalidInput(f"{output}: is the placement itself; name another file to write")
    simulated = {
        "--profile": profile,
        "--cluster": cluster,
        "--accelerators": accelerators,
        "--bandwidth": bandwidth,
        "--latency": latency,
    }
    if source is Source.RUN:
        # There it is where the placement runs.
        del simulated["--cluster"]
    given = [name for name, value in simulated.items() if value is not None]
    if source is not Source.SIMULATOR and given:
        raise InvalidInput(f"{given[0]} is for --from simulator, not for --from {source}")
    if source is Source.SCHEDULE and speeds is not None:
        raise InvalidInput("--speeds is for --from simulator and --from run")
    if source is not Source.RUN and timeout is not None:
        raise InvalidInput("--timeout is for --from run")
    relative = None if speeds is None else read_speeds(speeds)
    document = read_placement(placement, model=same_model(model, model_option))
    options = read_options(method_option, "method", "accumulate=4")
    method = choose_method(policy, options, document.method)
    match source:
        case Source.SCHEDULE:
            recording = from_schedule(placement, document, method, minibatches)
        case Source.RUN:
            recording = from_run(
                placement,
                document,
                method,
                minibatches,
                speeds=relative,
                cluster=cluster,
                timeout_seconds=timeout,
            )
        case Source.SIMULATOR:
            if profile is None:
                raise InvalidInput(
                    "the simulator needs what operators cost: --profile profile.json, which "
                    "drlpp profile writes"
                )
            file = None if cluster is None else Path(cluster)
            if given != ["--profile"]:
                found = read_cluster(file, accelerators, bandwidth, latency, relative, None)
            elif relative is not None:
                found = document.cluster.with_speeds(relative)
            else:
                found = document.cluster
            recording = from_simulator(
                placement, document, method, minibatches, profile=profile, cluster=found
            )
    title = f"{document.model.name} {document.configuration}, {method}, {recording.source}"
    console = build_console()
    console.print(time_use_table(recording, title))
    if output is not None:
        write_timeline(output, recording, title)
        console.print(f"written to {output}")
    return time_use_record(recording)
