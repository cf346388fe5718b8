"""What 1,024 accelerators and more would cost to plan, to simulate and to control.

    python -m benchmarks.scale planning --document docs/scale.md     # half an hour
    python -m benchmarks.scale workers --document docs/scale.md      # two minutes
    python -m benchmarks.scale hosts --document docs/scale.md        # three minutes; needs Ray

``planning`` needs no accelerators: it plans and simulates clusters in racks. ``workers`` starts up
to 64 worker processes on this machine, and ``hosts`` up to eight nodes of Ray, all idle; what more
would cost is extrapolated from these, and said to be.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pandas import DataFrame

from benchmarks.machine import this_machine
from benchmarks.options import DocumentOption, JsonOption
from benchmarks.report import markdown, terminal, write_between
from benchmarks.scale import hosts as ray_hosts
from benchmarks.scale import planning as racks
from benchmarks.scale import workers as local_workers
from benchmarks.scale.limited import limited
from benchmarks.scale.problems import SIZES, WORKLOADS
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import RunFailure

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, add_completion=False)

_MOST_SECONDS = 600


def _sizes(given: str) -> list[int]:
    return [int(size) for size in given.split(",")]


@app.command()
def planning(
    workloads: Annotated[str, typer.Option(help="Which, divided by semicolons.")] = ";".join(
        WORKLOADS
    ),
    sizes: Annotated[str, typer.Option(help="Numbers of accelerators.")] = ",".join(
        map(str, SIZES)
    ),
    seconds: Annotated[int, typer.Option(min=1, help="Of the processor, for each step.")] = 60,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan and simulate accelerators in racks."""
    rows = []
    for row in racks.measure(workloads.split(";"), _sizes(sizes), seconds):
        rows.append(row)
        if not as_json:
            line = "; ".join(racks.table_of([row]).iloc[0])
            build_console().print(line, highlight=False, soft_wrap=True)
    _report("planning", racks.table_of(rows), rows, document, as_json)


@app.command()
def workers(
    sizes: Annotated[str, typer.Option(help="Numbers of workers, at least two.")] = ",".join(
        map(str, local_workers.SIZES)
    ),
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start idle workers on this machine."""
    rows = []
    for size in _sizes(sizes):
        spent = limited(_MOST_SECONDS, local_workers.measure, size)
        if spent.value is None:
            raise RunFailure(f"{size} workers: {spent.obstacle}")
        rows.append(spent.value)
    _report("workers", local_workers.table_of(rows), rows, document, as_json)


@app.command()
def hosts(
    sizes: Annotated[str, typer.Option(help="Numbers of hosts, at least two.")] = ",".join(
        map(str, ray_hosts.SIZES)
    ),
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start nodes of Ray on this machine, with an idle worker on each."""
    rows = ray_hosts.measure(_sizes(sizes))
    _report("hosts", ray_hosts.table_of(rows), rows, document, as_json)


def _report(
    what: str, table: DataFrame, rows: list[Any], document: Path | None, as_json: bool
) -> None:
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1, default=str))
    else:
        build_console().print(terminal(table), str(this_machine()))
    if document is not None:
        begin = f"<!-- {what}: written by benchmarks.scale -->"
        text = f"{markdown(table)}\n\n({this_machine()}.)\n"
        write_between(document, begin, f"<!-- end of {what} -->", text)


if __name__ == "__main__":
    run_program(app, "benchmarks.scale")
