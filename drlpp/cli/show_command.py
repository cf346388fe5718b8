"""``drlpp show``: this machine, a model, a run, or any file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from drlpp.capturing.capture import capture
from drlpp.cli.arguments import Show, Source
from drlpp.cli.command_line import console
from drlpp.cli.commands import Refusal
from drlpp.cli.settings import WorkerSettings, model_reference, read_speeds, same_model
from drlpp.cli.showing.machine import CHECKS, NEEDED
from drlpp.cli.showing.tables import describe, describe_measurements, report_lines
from drlpp.cli.showing.timelines import from_run, from_schedule, from_simulator
from drlpp.costs.cost_table import read_profile
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.io.documents import content_of, read_any_document, read_mapping, write_document
from drlpp.io.progress_lines import shown
from drlpp.io.run_folder import OPTIONS_NAME
from drlpp.placement.placement_file import read_placement
from drlpp.report.page import write_report
from drlpp.report.tables import Table

_TAKEN_BY = {
    "profile": (Source.SIMULATOR,),
    "speeds": (Source.SIMULATOR, Source.RUN),
    "cluster": (Source.RUN,),
}
_FILES = {".json", ".jsonl", ".yaml", ".yml", ".csv", ".txt"}


def show(given: Show) -> Any:
    """Run ``drlpp show``."""
    what, out = given.what, given.out
    path = None if what is None else Path(what)
    # A program is no file of drlpp's: somebody means the model in it.
    named_file = path is not None and (
        path.suffix in _FILES or (os.path.exists(path) and path.suffix != ".py")
    )
    if given.timeline is not None:
        if path is None:
            raise InvalidInput("--timeline is of a placement: drlpp show PLACEMENT --timeline …")
        return _show_timeline(path, given.timeline, given)
    if out is not None and (what is None or named_file):
        raise InvalidInput("--out is for a model's graph: drlpp show MODEL -o graph.json")
    if what is None or path is None:
        return _show_machine()
    if os.path.isdir(path):
        page = write_report(path)
        console.print(f"written to {page}")
        return {"report": str(page)}
    if named_file:
        return _show_file(path)
    return _show_model(what, out, given.model_option)


def _show_machine() -> dict[str, Any]:
    """Show what the machine has; ends with exit code 1 if something keeps drlpp from training."""
    findings, rows, problems = [], [], []
    with shown(console, "examining this machine, and starting two workers"):
        for name, check in CHECKS.items():
            found, advice = check()
            state = "ok" if advice is None else "problem" if name in NEEDED else "note"
            findings.append({"name": name, "state": state, "found": found, "advice": advice})
            rows.append([name, found if advice is None else f"{found}\n→ {state}: {advice}"])
            problems += [name] * (state == "problem")
    console.print(Table(["check", "found"], rows))
    console.print(
        f"problems: {', '.join(problems)}" if problems else "drlpp can train on this machine"
    )
    record = {"problems": problems, "findings": findings}
    return Refusal(record) if problems else record


def _show_timeline(placement: Path, source: Source, given: Show) -> dict[str, Any]:
    out, minibatches = given.out, given.minibatches
    if out is not None and out.suffix.lower() != ".json":
        raise InvalidInput(f"{out}: a timeline is written as a trace for Perfetto; name it .json")
    if out is not None and out.resolve() == placement.resolve():
        raise InvalidInput(f"{out}: is the placement itself; name another file to write")
    if source is Source.SIMULATOR and given.profile is None:
        raise InvalidInput(
            "the simulator needs what operators cost: --profile profile.json, which drlpp profile "
            "writes"
        )
    for name, sources in _TAKEN_BY.items():
        if getattr(given, name) is not None and source not in sources:
            raise InvalidInput(f"--{name} is for --timeline {' or '.join(sources)}")
    speeds = read_speeds(given.speeds)
    document = read_placement(placement, model=same_model(given.model, given.model_option))
    chosen = given.method.method(document.method)
    try:
        if source is Source.SCHEDULE:
            found = from_schedule(document, chosen, minibatches)
        elif given.profile is not None:
            found = from_simulator(document, chosen, minibatches, given.profile, speeds)
        else:
            address = WorkerSettings(cluster=given.cluster).address
            found = from_run(document, chosen, minibatches, speeds, address)
    except InvalidPlacement as error:
        raise InvalidPlacement(f"{placement}: {error}") from None
    title = f"{document.model.name} {document.configuration}, {chosen}, {found.source}"
    console.print(found.table(title))
    if out is not None:
        found.write(out, title)
        console.print(f"written to {out}")
    return found.record()


def _show_file(file: Path) -> Any:
    if file.suffix == ".jsonl":
        console.print(describe_measurements(file))
        return [json.loads(line) for line in file.read_text().splitlines()]
    if file.name == OPTIONS_NAME:
        options = read_mapping(file)
        console.print(file.read_text().rstrip())
        return options
    document = read_profile(file) if file.suffix == ".csv" else read_any_document(file)
    console.print(describe(document))
    return content_of(document)


def _show_model(model: str, out: Path | None, options: list[str]) -> dict[str, Any]:
    graph = capture(model_reference(model, options)).graph
    console.print(f"{graph.model} · graph {graph.fingerprint}")
    for line in report_lines(graph):
        console.print(f"  {line}")
    if out is not None:
        write_document(out, graph)
        console.print(f"written to {out}; drlpp show {out} lists the operators")
    return {
        "graph": None if out is None else str(out),
        "operators": len(graph),
        "parameter_bytes": graph.parameter_bytes,
        "fingerprint": graph.fingerprint,
    }
