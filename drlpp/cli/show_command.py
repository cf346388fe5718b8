"""``drlpp show``: this machine, a model, a run, or any file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from drlpp.cli.command_line import (
    ModelOptions,
    Size,
    SizeOption,
    build_console,
    model_reference,
    said_if_long,
)
from drlpp.cli.common_options import RefusedWithRecord
from drlpp.errors import InvalidInput

_FILES = {".json", ".jsonl", ".yaml", ".yml", ".csv", ".txt"}


def show(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A model, a file of drlpp or of costs, or the folder of a run, whose page "
            "report.html is written. Default: this machine."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Of a model: write its graph here.")
    ] = None,
    size: SizeOption = Size.SMALL,
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
) -> Any:
    """Describe this machine, a model's operators, a run, or any file."""
    console = build_console()
    path = None if what is None else Path(what)
    named_file = path is not None and (path.suffix in _FILES or os.path.exists(path))
    if output is not None and (what is None or named_file):
        raise InvalidInput("--output is for a model's graph: drlpp show MODEL -o graph.json")
    if what is None or path is None:
        return _show_machine(console)
    if os.path.isdir(path):
        return _write_page(console, path)
    if named_file:
        return _show_file(console, path)
    return _show_model(console, what, output, size, model_option)


def _show_machine(console: Console) -> dict[str, Any]:
    """Show what the machine has; ends with exit code 1 if something keeps drlpp from training."""
    from drlpp.cli.showing.machine import all_checks, findings_table

    with said_if_long("examining this machine, and starting two workers"):
        findings = [check() for check in all_checks()]
    console.print(findings_table(findings))
    problems = [finding.name for finding in findings if finding.state == "problem"]
    console.print(
        f"problems: {', '.join(problems)}" if problems else "drlpp can train on this machine"
    )
    record = {"problems": problems, "findings": [finding.record for finding in findings]}
    if problems:
        raise RefusedWithRecord(record)
    return record


def _write_page(console: Console, folder: Path) -> dict[str, str]:
    from drlpp.reporting.page import write_report

    path = write_report(folder)
    console.print(f"written to {path}", soft_wrap=True)
    return {"report": str(path)}


def _show_file(console: Console, file: Path) -> Any:
    from drlpp.cli.showing.measurements_table import describe_measurements
    from drlpp.cli.showing.tables import describe, describe_options
    from drlpp.costs.cost_table import read_profile
    from drlpp.io.documents import content_of, read_any_document, read_mapping
    from drlpp.io.run_folder import OPTIONS_NAME

    if file.suffix == ".jsonl":
        console.print(describe_measurements(file))
        return [json.loads(line) for line in file.read_text().splitlines()]
    if file.name == OPTIONS_NAME:
        options = read_mapping(file)
        console.print(describe_options(options, file))
        return options
    document = read_profile(file) if file.suffix == ".csv" else read_any_document(file)
    console.print(describe(document))
    return content_of(document)


def _show_model(
    console: Console, model: str, output: Path | None, size: Size, options: list[str]
) -> dict[str, Any]:
    from drlpp.capturing.capture import capture
    from drlpp.cli.showing.graph_report import report_lines
    from drlpp.io.documents import write_document

    captured = capture(model_reference(model, size, options))
    graph = captured.graph
    console.print(f"{graph.model} · graph {graph.fingerprint}", soft_wrap=True)
    for line in report_lines(graph):
        console.print(f"  {line}", soft_wrap=True)
    if output is not None:
        write_document(output, graph)
        console.print(f"written to {output}; drlpp show {output} lists the operators")
    return {
        "graph": None if output is None else str(output),
        "operators": len(graph),
        "parameter_bytes": graph.parameter_bytes,
        "fingerprint": graph.fingerprint,
    }


def end_with_report(console: Console, folder: Path) -> None:
    """Write the page of a run that has ended, and print its path."""
    from drlpp.reporting.page import write_report

    try:
        path = write_report(folder)
    except Exception as error:
        # The run itself is done; nothing about a page may turn that into a failure.
        console.print(f"no report could be written: {error}", soft_wrap=True)
    else:
        console.print(f"report: {path}", soft_wrap=True)
