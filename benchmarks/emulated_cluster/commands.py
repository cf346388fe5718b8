"""The command line: run a command on an emulated cluster, check one, clean up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.emulated_cluster.emulation import (
    EmulatedCluster,
    ended_by_signals,
    remove_leftovers,
)
from benchmarks.emulated_cluster.self_check import check, table_of
from drlpp.cli.command_line import build_console
from drlpp.io.documents import read_document
from drlpp.specs.cluster import Cluster

app = typer.Typer(
    help="A cluster on this machine: hosts, accelerators and links as cluster.yaml describes them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

ClusterArgument = Annotated[Path, typer.Argument(metavar="CLUSTER", help="A cluster.yaml.")]


@app.command()
def run(
    cluster: ClusterArgument,
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="Run on the first host."),
    ],
    timeout: Annotated[
        float | None, typer.Option(min=0, help="In seconds, after which the command is ended.")
    ] = None,
    dilate: Annotated[
        bool,
        typer.Option(
            "--dilate",
            help="Without root, namespaces and control groups: the command emulates the speeds, "
            "links are this machine's.",
        ),
    ] = False,
    quotas: Annotated[
        bool,
        typer.Option(
            help="Slow accelerators down by control groups; else the command emulates the speeds, "
            "on emulated hosts and links."
        ),
    ] = True,
) -> None:
    """Build a cluster with Ray on each of its hosts, and run a command on the first.

    What it prints is shown. In the end, after a failure and after Ctrl-C too, nothing is left.
    """
    description = read_document(cluster, Cluster)
    with (
        ended_by_signals(),
        EmulatedCluster(description, dilated=dilate, quotas=quotas) as emulated,
    ):
        print(emulated.description, file=sys.stderr, flush=True)
        emulated.run(command, timeout, _show)


@app.command("check")
def check_cluster(
    cluster: ClusterArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure bandwidth, delay and speeds within a cluster, beside what its file says."""
    description = read_document(cluster, Cluster)
    with ended_by_signals(), EmulatedCluster(description) as emulated:
        print(emulated.description, file=sys.stderr, flush=True)
        checked = check(emulated)
    if as_json:
        print(checked.as_json())
    else:
        build_console().print(table_of(checked, description))


@app.command()
def clean() -> None:
    """Remove what killed clusters have left: processes, namespaces, control groups."""
    names = remove_leftovers()
    for name in names:
        print(f"removed {name}")
    if not names:
        print("nothing was left")


def _show(text: str) -> None:
    print(text, end="", flush=True)
