"""``drlpp convert``: a profile in the formats of other projects."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from drlpp.cli.command_line import AcceleratorsOption, BandwidthOption, LatencyOption, build_console
from drlpp.errors import InvalidInput


class ProfileFormat(StrEnum):
    """Whose format."""

    PROFILE = "profile"
    TABLE = "table"
    PIPEDREAM = "pipedream"
    DNN_PARTITIONING = "dnn-partitioning"


def convert_profile(
    profile: Annotated[
        Path, typer.Argument(help="A profile.json, a table of costs (.csv), or PipeDream's.")
    ],
    to: Annotated[
        ProfileFormat,
        typer.Option(
            help="profile: drlpp's; table: CSV; pipedream: graph.txt; dnn-partitioning: an "
            "instance, for --accelerators of --memory with links of --bandwidth."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write.")],
    accelerators: AcceleratorsOption = None,
    bandwidth: BandwidthOption = None,
    latency: LatencyOption = None,
    memory: Annotated[float | None, typer.Option(help="Of each accelerator, in bytes.")] = None,
) -> dict[str, Any]:
    """Write what a model costs in another format."""
    from drlpp.cli.planning.planning_input import read_cluster
    from drlpp.costs.files.cost_table import write_cost_table
    from drlpp.costs.files.pipedream_writer import write_pipedream_profile
    from drlpp.costs.files.profile_files import read_profile
    from drlpp.io.documents import write_document
    from drlpp.planners.milp.partitioning_writer import write_partitioning_instance

    instance = to is ProfileFormat.DNN_PARTITIONING
    given = [value is not None for value in (accelerators, bandwidth, latency, memory)]
    if any(given) and not instance:
        raise InvalidInput("accelerators, links and memory belong to --to dnn-partitioning alone")
    costs = read_profile(profile)
    match to:
        case ProfileFormat.PROFILE:
            write_document(output, costs)
        case ProfileFormat.TABLE:
            write_cost_table(output, costs)
        case ProfileFormat.PIPEDREAM:
            write_pipedream_profile(output, costs)
        case ProfileFormat.DNN_PARTITIONING:
            if memory is None:
                raise InvalidInput("an instance limits memory: give --memory, in bytes")
            cluster = read_cluster(None, accelerators, bandwidth, latency, None, memory)
            link = cluster.within_host
            write_partitioning_instance(output, costs, cluster.accelerators, link, memory)
    build_console().print(f"{costs.graph.model}: {len(costs.graph)} operators written to {output}")
    return {"model": costs.graph.model, "operators": len(costs.graph), "output": str(output)}
