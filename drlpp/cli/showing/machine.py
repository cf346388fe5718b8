"""What this machine has for training, a check each: what was found, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import torch
from rich.filesize import decimal

from drlpp.errors import DRLPPError
from drlpp.io.formatting import seconds_text
from drlpp.models.task import Task
from drlpp.placement.placement_file import Versions
from drlpp.runtime import ClusterSession
from drlpp.runtime.device.devices import DEVICE_KINDS, devices_here, facts_of
from drlpp.torch_versions import OLDEST, older_than

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
        library = found[0].kind.backend.upper()
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
