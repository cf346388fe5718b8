"""``python -m benchmarks.emulated_cluster``: run a command on an emulated cluster, clean up."""

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
from drlpp.cli.command_line import run_program
from drlpp.io.documents import read_document
from drlpp.specs.cluster import Cluster

app = typer.Typer(
    help="A cluster on this machine: hosts, accelerators and links as cluster.yaml describes them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command()
def run(
    cluster: Annotated[Path, typer.Argument(metavar="CLUSTER", help="A cluster.yaml.")],
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="Run on the first host."),
    ],
    timeout: Annotated[
        float | None, typer.Option(min=0, help="In seconds, after which the command is ended.")
    ] = None,
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
    with ended_by_signals(), EmulatedCluster(description, quotas=quotas) as emulated:
        print(emulated.description, file=sys.stderr, flush=True)
        emulated.run(command, timeout, _show)


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


if __name__ == "__main__":
    run_program(app, "emulated_cluster")
