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
from drlpp.cli.descriptions import describe, describe_measurements
from drlpp.cli.settings import WorkerSettings, model_reference, same_model
from drlpp.cli.timelines import from_run, from_schedule, from_simulator
from drlpp.costs.cost_table import read_profile
from drlpp.errors import DRLPPError, InvalidInput, InvalidPlacement, RunFailure
from drlpp.io.documents import content_of, read_any_document, read_mapping
from drlpp.io.formatting import seconds_text
from drlpp.io.progress_lines import shown
from drlpp.io.run_folder import OPTIONS_NAME
from drlpp.models.task import Task
from drlpp.placement.placement_file import Versions, read_placement
from drlpp.planners.replanning import profile_beside
from drlpp.report.page import write_report
from drlpp.report.tables import Table
from drlpp.runtime import ClusterSession
from drlpp.runtime.device.devices import DEVICE_KINDS, devices_here, facts_of

_FILES = {".json", ".jsonl", ".yaml", ".yml", ".csv", ".txt"}


def show(given: Show) -> Any:
    """Run ``drlpp show``; what it returns is the content of what it shows."""
    what = given.what
    if given.timeline is not None:
        if what is None:
            raise InvalidInput("--timeline is of a placement: drlpp show PLACEMENT --timeline …")
        return _show_timeline(Path(what), given.timeline, given)
    of_timelines = ("model", "minibatches", "speeds", "cluster")
    if ignored := [name for name in of_timelines if getattr(given, name) is not None]:
        names = " and --".join(ignored)
        raise InvalidInput(f"without --timeline nothing reads --{names}; give it as well")
    if what is None:
        return _show_machine()
    if os.path.isdir(what):
        page = write_report(Path(what))
        console.print(f"written to {page}")
        return {"report": str(page)}
    # A program is no file of drlpp's: somebody means the model in it.
    path = Path(what)
    if path.suffix in _FILES or (os.path.exists(what) and path.suffix != ".py"):
        return _show_file(path)
    graph = capture(model_reference(what, given.model_option)).graph
    console.print(describe(graph))
    return content_of(graph)


def _show_machine() -> dict[str, Any]:
    """Show what the machine has.

    Raises:
        RunFailure: something keeps drlpp from training.
    """
    found: dict[str, Answer] = {}
    with shown(console, "examining this machine, and starting two workers"):
        for name, check in CHECKS.items():
            found[name] = check()
    rows = [[name, f"{has}\n→ {todo}" if todo else has] for name, (has, todo) in found.items()]
    console.print(Table(["check", "found"], rows))
    if problems := [name for name in found.keys() & NEEDED if found[name][1] is not None]:
        raise RunFailure(f"drlpp cannot train on this machine: {', '.join(sorted(problems))}")
    console.print("drlpp can train on this machine")
    return {name: has for name, (has, _) in found.items()}


_LEAST_MEMORY_BYTES = 2e9

Answer = tuple[str, str | None]
"""What a check found, and what to do about it; None if nothing."""


def versions() -> Answer:
    """Check the versions of Python, torch and drlpp, and the system."""
    known = Versions.current()
    found = f"drlpp {known.drlpp}, torch {known.torch}, Python {known.python}"
    is_linux = platform.system() == "Linux"
    advice = None if is_linux else "workers need Linux: use a container or WSL 2"
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


def _show_timeline(path: Path, source: Source, given: Show) -> dict[str, Any]:
    if source != "run" and (given.speeds is not None or given.cluster is not None):
        raise InvalidInput("--speeds and --cluster are for --timeline run")
    document = read_placement(path, model=same_model(given.model, given.model_option))
    minibatches = 8 if given.minibatches is None else given.minibatches
    try:
        if source == "schedule":
            found = from_schedule(document, minibatches)
        elif source == "run":
            count = document.cluster.accelerators
            workers = WorkerSettings(workers=count, speeds=given.speeds, cluster=given.cluster)
            found = from_run(document, minibatches, workers)
        elif (costs := profile_beside(path, document.graph_fingerprint)) is not None:
            found = from_simulator(document, minibatches, costs)
        else:
            raise InvalidInput(
                f"the simulator needs what operators cost: next to {path} there is no profile.json "
                "of its model, which drlpp profile writes"
            )
    except InvalidPlacement as error:
        raise InvalidPlacement(f"{path}: {error}") from None
    title = f"{document.model.name} {document.configuration}, {document.method}, {found.source}"
    console.print(found.table(title))
    return found.trace(title)


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
