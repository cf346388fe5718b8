"""What this machine has for training, a check each: what was found, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from rich.filesize import decimal
from rich.table import Table

from drlpp.errors import DRLPPError
from drlpp.io.formatting import seconds_text
from drlpp.models.task import Task
from drlpp.placement.placement_file import Versions
from drlpp.report.tables import table_of
from drlpp.runtime import ClusterSession
from drlpp.runtime.device.devices import DEVICE_KINDS, devices_here, facts_of
from drlpp.torch_versions import OLDEST, older_than

_LEAST_MEMORY_BYTES = 2e9
_STYLES = {"problem": "bold red", "note": "yellow"}


class Finding(NamedTuple):
    """What a check found, and what to do about it.

    The state is ``note`` if something cannot be done here, ``problem`` if nothing can.
    """

    name: str
    state: Literal["ok", "note", "problem"]
    found: str
    advice: str | None = None


def findings_table(findings: Sequence[Finding]) -> Table:
    """Show what the checks found."""
    table = table_of(["check", "found"], [])
    for finding in findings:
        text = finding.found if finding.advice is None else f"{finding.found}\n→ {finding.advice}"
        table.add_row(finding.name, text, style=_STYLES.get(finding.state))
    return table


def versions() -> Finding:
    """Check the versions of Python, torch and drlpp, and the system."""
    known = Versions.current()
    found = f"drlpp {known.drlpp}, torch {known.torch}, Python {known.python}"
    found += f" on {platform.system()} {platform.machine()}"
    advice = f"install torch {OLDEST} or later" if older_than(OLDEST) else None
    if platform.system() != "Linux":
        advice = "workers need Linux: use a container or WSL 2"
    return Finding("versions", "problem" if advice else "ok", found, advice)


def cores() -> Finding:
    """Check the cores that may be used, and how busy they are."""
    usable, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    found = f"{usable} of {os.cpu_count()} usable; load {load:.1f}"
    if load > usable / 2:
        return Finding("cores", "note", found, "end other programs before measuring")
    return Finding("cores", "ok", found)


def memory() -> Finding:
    """Check the free memory, and the free space for runs."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    disk = decimal(shutil.disk_usage(".").free)
    found = f"{decimal(free)} of {decimal(total)} free; {disk} free on the disk of this folder"
    if free >= _LEAST_MEMORY_BYTES:
        return Finding("memory", "ok", found)
    advice = "a worker takes 0.3 GB without its model: end other programs, or use fewer workers"
    return Finding("memory", "problem", found, advice)


def gpus() -> Finding:
    """Check for GPUs that torch can use, and whether it has their library for several."""
    for kind in [kind for kind in DEVICE_KINDS if kind != "cpu"]:
        found = [facts_of(torch.device(kind, index)) for index in range(devices_here(kind))]
        if not found:
            continue
        names = ", ".join(f"{gpu.name} ({decimal(gpu.memory_bytes or 0)})" for gpu in found)
        library = found[0].kind.backend.upper()
        if found[0].has_backend:
            ours = "" if library == "GLOO" else f"; {library} is built into torch"
            return Finding("GPUs", "ok", f"{names}{ours}")
        advice = f"without {library} tensors go through the host's memory: install torch's build "
        return Finding("GPUs", "note" if len(found) > 1 else "ok", names, f"{advice}for {kind}")
    if shutil.which("nvidia-smi") is None:
        return Finding("GPUs", "ok", "none; workers compute on the CPU")
    advice = "install torch for CUDA (pytorch.org/get-started)"
    if torch.version.cuda is not None:
        advice = f"update the driver to that of torch's CUDA {torch.version.cuda}"
    return Finding("GPUs", "note", "nvidia-smi is here, but torch reaches no GPU", advice)


def workers() -> Finding:
    """Start two workers, and time a message between them."""
    inputs, targets = torch.ones(2, 4), torch.zeros(2, 4)
    task = Task(torch.nn.Linear(4, 4), inputs, targets, torch.nn.functional.mse_loss)
    try:
        # A note about so small a model is of no use here.
        with ClusterSession(task, workers=2, device="cpu", note=lambda _: None) as session:
            _, cluster = session.profile(repeats=2)
    except (DRLPPError, OSError) as error:
        advice = "fix that, then run drlpp show again"
        return Finding("workers", "problem", f"two could not be started: {error}", advice)
    link = cluster.within_host
    found = (
        f"two answer; a message takes {seconds_text(link.latency_seconds)}, "
        f"{decimal(round(link.bandwidth_bytes_per_second))}/s"
    )
    return Finding("workers", "ok", found)


CHECKS = (versions, cores, memory, gpus, workers)
"""In the order of the table; each returns within some seconds."""
