"""What this machine has for training, a check each: what was found, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from packaging.version import Version
from rich.filesize import decimal
from rich.table import Table

from drlpp.report.tables import table_of

OLDEST_TORCH = "2.8"
"""The oldest version that is supported, as ``pyproject.toml`` says."""

_LEAST_MEMORY_BYTES = 2e9
_STYLES = {"problem": "bold red", "note": "yellow"}


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        name: what was looked at.
        state: ``ok``; ``note`` if something cannot be done here; ``problem`` if nothing can.
        found: in words.
        advice: what to do about it.
    """

    name: str
    state: Literal["ok", "note", "problem"]
    found: str
    advice: str | None = None

    @property
    def record(self) -> dict[str, Any]:
        """The finding as plain data."""
        return asdict(self)


def all_checks() -> Sequence[Callable[[], Finding]]:
    """Return the checks in the order of the table; each returns within some seconds."""
    return (versions, cores, memory, gpus, workers)


def findings_table(findings: Sequence[Finding]) -> Table:
    """Show what the checks found."""
    table = table_of(["check", "found"], [])
    for finding in findings:
        text = finding.found if finding.advice is None else f"{finding.found}\n→ {finding.advice}"
        table.add_row(finding.name, text, style=_STYLES.get(finding.state))
    return table


def versions() -> Finding:
    """Check the versions of Python, torch and drlpp, and the system."""
    from drlpp.placement.placement_file import Versions

    known = Versions.current()
    found = f"drlpp {known.drlpp}, torch {known.torch}, Python {known.python}"
    found += f" on {platform.system()} {platform.machine()}"
    if Version(known.torch.partition("+")[0]) < Version(OLDEST_TORCH):
        return Finding("versions", "problem", found, f"install torch {OLDEST_TORCH} or later")
    if platform.system() != "Linux":
        return Finding("versions", "problem", found, "workers need Linux: use a container or WSL 2")
    return Finding("versions", "ok", found)


def cores() -> Finding:
    """Check the cores that may be used, and how busy they are."""
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    found = f"{usable} of {there} usable"
    quota = _core_quota()
    if quota is not None and quota < usable:
        found += f"; a control group gives {quota:g} cores of time"
        advice = f"give the container more, or use at most {max(int(quota), 1)} workers"
        return Finding("cores", "note", found, advice)
    load = os.getloadavg()[0]
    if load > usable / 2:
        found += f"; load {load:.1f}"
        return Finding("cores", "note", found, "end other programs before measuring")
    return Finding("cores", "ok", found)


def _core_quota() -> float | None:
    """Return the cores that the control group allows, of version 2; None without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def memory() -> Finding:
    """Check the free memory, and the free space for runs."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    found = f"{decimal(free)} of {decimal(total)} free; {decimal(shutil.disk_usage('.').free)} "
    found += "free on the disk of this folder"
    if free < _LEAST_MEMORY_BYTES:
        advice = "a worker takes 0.3 GB without its model: end other programs, or use fewer workers"
        return Finding("memory", "problem", found, advice)
    return Finding("memory", "ok", found)


def gpus() -> Finding:
    """Check for GPUs, whether torch can use them, and whether it has NCCL for several."""
    if torch.cuda.is_available():
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        names = ", ".join(f"{gpu.name} ({decimal(gpu.total_memory)})" for gpu in found)
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            return Finding("GPUs", "ok", f"{names}; NCCL is built into torch")
        if len(found) == 1:
            return Finding("GPUs", "ok", names)
        advice = "install torch's build for CUDA; until then tensors go through the host's memory"
        return Finding("GPUs", "note", f"{names}; NCCL is missing from this build of torch", advice)
    seen = _nvidia_smi()
    if seen is None:
        return Finding("GPUs", "ok", "none; workers compute on the CPU")
    if torch.version.cuda is None:
        advice = "install torch for CUDA (pytorch.org/get-started)"
        return Finding("GPUs", "note", f"{seen}, but torch was built without CUDA", advice)
    advice = f"update the driver to that of torch's CUDA {torch.version.cuda}"
    return Finding("GPUs", "note", f"{seen}, but torch cannot reach it", advice)


def _nvidia_smi() -> str | None:
    """Return the GPUs that the driver lists."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ", ".join(done.stdout.split("\n")).strip(", ") or None


def workers() -> Finding:
    """Start two workers, and time a message between them."""
    from drlpp.errors import DRLPPError
    from drlpp.io.formatting import seconds_text
    from drlpp.models.task import Task
    from drlpp.runtime import ClusterSession

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
