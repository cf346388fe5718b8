"""``drlpp show``: this machine, a model, a run, or any file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from drlpp.cli.command_line import (
    POLICY_HELP,
    ClusterOption,
    MethodOptions,
    ModelOptions,
    SameModelOption,
    Size,
    SizeOption,
    SpeedsOption,
    build_console,
    model_reference,
    read_options,
    said_if_long,
    same_model,
)
from drlpp.cli.common_options import RefusedWithRecord
from drlpp.errors import InvalidInput
from drlpp.schedule.method_choice import choose_method

if TYPE_CHECKING:
    from drlpp.models.model_reference import ModelReference
    from drlpp.schedule.method import Method


class Source(StrEnum):
    """Where a timeline comes from."""

    SCHEDULE = "schedule"
    SIMULATOR = "simulator"
    RUN = "run"


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
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The graph of a model (.json); of a timeline a picture (.png, .svg), or a trace "
            "for Perfetto (.json).",
        ),
    ] = None,
    timeline: Annotated[
        Source | None,
        typer.Option(
            help="Of a placement: what every worker does when. schedule: a forward takes 1, a "
            "backward 2; simulator: predicted from --profile; run: measured on workers."
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Costs for --timeline simulator: a profile of the model.")
    ] = None,
    minibatches: Annotated[
        int, typer.Option(min=1, max=100_000, help="Minibatches of a timeline's window.")
    ] = 8,
    policy: Annotated[
        str | None, typer.Option(help=f"{POLICY_HELP}; by default the placement's.")
    ] = None,
    method_option: MethodOptions = [],  # noqa: B006 - typer copies it
    speeds: SpeedsOption = None,
    cluster: ClusterOption = None,
    size: SizeOption = Size.SMALL,
    model: SameModelOption = None,
    model_option: ModelOptions = [],  # noqa: B006
) -> Any:
    """Describe this machine, a model's operators, a run, a placement's timeline, or any file."""
    console = build_console()
    path = None if what is None else Path(what)
    # A program is no file of drlpp's: somebody means the model in it.
    named_file = path is not None and (
        path.suffix in _FILES or (os.path.exists(path) and path.suffix != ".py")
    )
    if timeline is not None:
        if path is None:
            raise InvalidInput("--timeline is of a placement: drlpp show PLACEMENT --timeline …")
        named = same_model(model, model_option)
        options = read_options(method_option, "method", "accumulate=4")
        return _show_timeline(
            console,
            path,
            timeline,
            output,
            named,
            lambda measured: choose_method(policy, options, measured),
            minibatches=minibatches,
            profile=profile,
            speeds=speeds,
            cluster=cluster,
        )
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


def _show_timeline(
    console: Console,
    placement: Path,
    source: Source,
    output: Path | None,
    model: ModelReference | str | None,
    method_of: Callable[[Method], Method],
    *,
    speeds: str | None,
    **options: Any,
) -> dict[str, Any]:
    from drlpp.cli.planning.planning_input import read_speeds
    from drlpp.cli.showing.timeline import (
        check_ending,
        time_use_record,
        time_use_table,
        timeline_of,
        write_timeline,
    )
    from drlpp.placement.placement_file import read_placement

    if output is not None:
        check_ending(output)
        if output.resolve() == placement.resolve():
            raise InvalidInput(f"{output}: is the placement itself; name another file to write")
    relative = None if speeds is None else read_speeds(speeds)
    document = read_placement(placement, model=model)
    method = method_of(document.method)
    found = timeline_of(placement, document, source.value, method, speeds=relative, **options)
    title = f"{document.model.name} {document.configuration}, {method}, {found.source}"
    console.print(time_use_table(found, title))
    if output is not None:
        write_timeline(output, found, title)
        console.print(f"written to {output}")
    return time_use_record(found)


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
