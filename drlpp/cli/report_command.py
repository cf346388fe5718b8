"""``drlpp report``, and the report that every run ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from drlpp.cli.command_line import build_console


def report_run(
    folder: Annotated[Path, typer.Argument(help="Of a run of drlpp learn, train or race.")],
) -> dict[str, str]:
    """Write a page about a run into its folder: races, placements, timelines, losses."""
    from drlpp.reporting.page import write_report

    path = write_report(folder)
    build_console().print(f"written to {path}", soft_wrap=True)
    return {"report": str(path)}


def end_with_report(console: Console, folder: Path) -> None:
    """Write the report of a run that is over, and say where it is."""
    from drlpp.reporting.page import write_report

    try:
        path = write_report(folder)
    except Exception as error:
        # What was asked for is done; nothing about a page may turn that into a failure.
        console.print(f"no report could be written: {error}", soft_wrap=True)
    else:
        console.print(f"report: {path}", soft_wrap=True)
