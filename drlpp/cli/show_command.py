"""``drlpp show``: this machine, a model, a run, or any file."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import torch
from rich.filesize import decimal

from drlpp.capturing.capture import capture
from drlpp.cli.arguments import Show, Source
from drlpp.cli.command_line import console
from drlpp.cli.commands import Refusal
from drlpp.cli.descriptions import describe, describe_measurements, report_lines
from drlpp.cli.settings import WorkerSettings, model_reference, read_speeds, same_model
from drlpp.cli.timelines import from_run, from_schedule, from_simulator
from drlpp.costs.cost_table import read_profile
from drlpp.errors import DRLPPError, InvalidInput, InvalidPlacement
from drlpp.io.documents import content_of, read_any_document, read_mapping, write_document
from drlpp.io.formatting import seconds_text
from drlpp.io.progress_lines import shown
from drlpp.io.run_folder import OPTIONS_NAME
from drlpp.models.task import Task
from drlpp.placement.placement_file import Versions, read_placement
from drlpp.report.page import write_report
from drlpp.report.tables import Table
from drlpp.runtime import ClusterSession
from drlpp.runtime.device.devices import DEVICE_KINDS, devices_here, facts_of
from drlpp.torch_versions import OLDEST, older_than

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


_LEAST_MEMORY_BYTES = 2e9

Answer = tuple[str, str | None]
"""What a check found, and what to do about it; None if nothing."""


def versions() -> Answer:
    """Check the versions of Python, torch and drlpp, and the system."""
    known = Versions.current()
    found = f"drlpp {known.drlpp}, torch {known.torch}, Python {known.python}"
    advice = f"install torch {OLDEST} or later" if older_than(OLDEST) else None
    if platform.system() != "Linux":
        advice = "workers need Linux: use a container or WSL 2"
    return f"{found} on {platform.system()} {platform.machine()}", advice


def cores() -> Answer:
    """Check the cores that may be used, and how busy they are."""
    usable, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    advice = "end other programs before measuring" if load > usable / 2 else None
    return f"{usable} of {os.cpu_count()} usable; load {load:.1f}", advice


def memory() -> Answer:
    """Check the free memory, and the free space for runs."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    disk = decimal(shutil.disk_usage(".").free)
    advice = "a worker takes 0.3 GB without its model: end other programs, or use fewer workers"
    return (
        f"{decimal(free)} of {decimal(total)} free; {disk} free on the disk of this folder",
        advice if free < _LEAST_MEMORY_BYTES else None,
    )


def gpus() -> Answer:
    """Check for GPUs that torch can use, and whether it has their library for several."""
    for kind in [kind for kind in DEVICE_KINDS if kind != "cpu"]:
        found = [facts_of(torch.device(kind, index)) for index in range(devices_here(kind))]
        if not found:
            continue
        names = ", ".join(f"{gpu.name} ({decimal(gpu.memory_bytes or 0)})" for gpu in found)
        library = DEVICE_KINDS[kind].backend.upper()
        if found[0].has_backend:
            return names + ("" if library == "GLOO" else f"; {library} is built into torch"), None
        advice = f"without {library} tensors go through the host's memory: install torch's build "
        return names, f"{advice}for {kind}"
    if shutil.which("nvidia-smi") is None:
        return "none; workers compute on the CPU", None
    advice = "install torch for CUDA (pytorch.org/get-started)"
    if torch.version.cuda is not None:
        advice = f"update the driver to that of torch's CUDA {torch.version.cuda}"
    return "nvidia-smi is here, but torch reaches no GPU", advice


def workers() -> Answer:
    """Start two workers, and time a message between them."""
    inputs, targets = torch.ones(2, 4), torch.zeros(2, 4)
    task = Task(torch.nn.Linear(4, 4), inputs, targets, torch.nn.functional.mse_loss)
    try:
        # A note about so small a model is of no use here.
        with ClusterSession(task, workers=2, device="cpu", note=lambda _: None) as session:
            link = session.profile(repeats=2)[1].within_host
    except (DRLPPError, OSError) as error:
        return f"two could not be started: {error}", "fix that, then run drlpp show again"
    bandwidth = decimal(round(link.bandwidth_bytes_per_second))
    return f"two answer; a message takes {seconds_text(link.latency_seconds)}, {bandwidth}/s", None


CHECKS = {
    "versions": versions,
    "cores": cores,
    "memory": memory,
    "GPUs": gpus,
    "workers": workers,
}
"""In the order of the table; each returns within some seconds."""

NEEDED = {"versions", "memory", "workers"}
"""Without what these ask for, nothing can be trained here."""


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
