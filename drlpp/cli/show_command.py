"""``drlpp show``: this machine, a model, a run, or any file."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from drlpp.cli.command_line import build_console, said_if_long
from drlpp.cli.commands import RefusedWithRecord
from drlpp.cli.settings import (
    CostProfile,
    MethodSettings,
    Minibatches,
    ModelOptions,
    Out,
    RayCluster,
    SameModel,
    Speeds,
    model_reference,
    read_speeds,
    same_model,
)
from drlpp.errors import InvalidInput

if TYPE_CHECKING:
    from drlpp.models.model_reference import ModelReference


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
            metavar="WHAT",
            help="A model, a file of drlpp or of costs, or the folder of a run, whose page "
            "report.html is written. Default: this machine.",
        ),
    ] = None,
    model: SameModel = None,
    model_option: ModelOptions = [],  # noqa: B006 - typer copies it
    *,
    timeline: Annotated[
        Source | None,
        typer.Option(
            help="Of a placement: what every worker does when. schedule: a forward takes 1, a "
            "backward 2; simulator: predicted from --profile; run: measured on workers.",
        ),
    ] = None,
    profile: CostProfile = None,
    minibatches: Minibatches = 8,
    method: MethodSettings,
    speeds: Speeds = None,
    cluster: RayCluster = None,
    out: Annotated[Path | None, Out] = None,
) -> Any:
    """Describe this machine, a model's operators, a run, a placement's timeline, or any file.

    --out writes the graph of a model, or of a timeline a trace for ui.perfetto.dev (.json).
    """
    console = build_console()
    path = None if what is None else Path(what)
    # A program is no file of drlpp's: somebody means the model in it.
    named_file = path is not None and (
        path.suffix in _FILES or (os.path.exists(path) and path.suffix != ".py")
    )
    if timeline is not None:
        if path is None:
            raise InvalidInput("--timeline is of a placement: drlpp show PLACEMENT --timeline …")
        return _show_timeline(
            console,
            path,
            timeline,
            out,
            same_model(model, model_option),
            method,
            speeds=None if speeds is None else read_speeds(speeds),
            profile=profile,
            cluster=cluster,
            minibatches=minibatches or 8,
        )
    if out is not None and (what is None or named_file):
        raise InvalidInput("--out is for a model's graph: drlpp show MODEL -o graph.json")
    if what is None or path is None:
        return _show_machine(console)
    if os.path.isdir(path):
        return _write_page(console, path)
    if named_file:
        return _show_file(console, path)
    return _show_model(console, what, out, model_option)


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
    out: Path | None,
    model: ModelReference | str | None,
    method: MethodSettings,
    **options: Any,
) -> dict[str, Any]:
    from drlpp.cli.showing.timelines import (
        check_ending,
        time_use_record,
        time_use_table,
        timeline_of,
        write_timeline,
    )
    from drlpp.placement.placement_file import read_placement

    if out is not None:
        check_ending(out)
        if out.resolve() == placement.resolve():
            raise InvalidInput(f"{out}: is the placement itself; name another file to write")
    document = read_placement(placement, model=model)
    chosen = method.method(document.method)
    found = timeline_of(placement, document, source.value, chosen, **options)
    title = f"{document.model.name} {document.configuration}, {chosen}, {found.source}"
    console.print(time_use_table(found, title))
    if out is not None:
        write_timeline(out, found, title)
        console.print(f"written to {out}")
    return time_use_record(found)


def _write_page(console: Console, folder: Path) -> dict[str, str]:
    from drlpp.report.page import write_report

    path = write_report(folder)
    console.print(f"written to {path}", soft_wrap=True)
    return {"report": str(path)}


def _show_file(console: Console, file: Path) -> Any:
    from drlpp.cli.showing.tables import describe, describe_measurements, describe_options
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
    console: Console, model: str, out: Path | None, options: list[str]
) -> dict[str, Any]:
    from drlpp.capturing.capture import capture
    from drlpp.cli.showing.tables import report_lines
    from drlpp.io.documents import write_document

    graph = capture(model_reference(model, options)).graph
    console.print(f"{graph.model} · graph {graph.fingerprint}", soft_wrap=True)
    for line in report_lines(graph):
        console.print(f"  {line}", soft_wrap=True)
    if out is not None:
        write_document(out, graph)
        console.print(f"written to {out}; drlpp show {out} lists the operators")
    return {
        "graph": None if out is None else str(out),
        "operators": len(graph),
        "parameter_bytes": graph.parameter_bytes,
        "fingerprint": graph.fingerprint,
    }
