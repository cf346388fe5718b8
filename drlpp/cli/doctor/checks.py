"""What a machine needs for this project, a check each: what was found, and what to do."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from packaging.version import Version
from rich.filesize import decimal

OLDEST_TORCH = "2.8"
"""The oldest that is supported, as ``pyproject.toml`` says."""

_LEAST_MEMORY_BYTES = 2e9
_LEAST_DISK_BYTES = 1e9
_LONGEST_TEMPORARY_NAME = 60
"""Characters of the folder of temporary files: a socket's name may have 107 in all."""

_EXTRAS = {
    "sklearn": "data (--data digits)",
    "transformers": "huggingface (models of transformers)",
}


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes:
        name: of what was looked at.
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
    """Return the checks in the order of a report; each returns within some seconds."""
    return (
        versions,
        cores,
        memory,
        disk,
        gpus,
        nccl,
        extras,
        emulation,
        host_name,
        temporary_files,
        gloo,
        workers,
    )


def versions() -> Finding:
    """Look at the versions of Python, torch and drlpp."""
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
    """Look at the cores that may be used, and how many threads torch would take."""
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = _core_quota()
    found = f"{usable} of {there} usable, torch would take {torch.get_num_threads()} threads"
    if quota is not None and quota < usable:
        found += f"; a control group gives {quota:g} cores of time"
        advice = f"give the container more, or no more than {max(int(quota), 1)} workers"
        return Finding("cores", "note", found, advice)
    if usable < 2:
        advice = "workers take turns on one core: times say nothing but with --speeds"
        return Finding("cores", "note", found, advice)
    load = os.getloadavg()[0]
    if load > usable / 2:
        found += f"; load {load:.1f}"
        return Finding("cores", "note", found, "end other programs before measuring")
    return Finding("cores", "ok", found)


def _core_quota() -> float | None:
    """Return the cores that the control group allows, of version 2; None if it does not limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def memory() -> Finding:
    """Look at the memory that is free."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    found = f"{decimal(free)} of {decimal(total)} free"
    if free < _LEAST_MEMORY_BYTES:
        advice = "a worker takes 0.3 GB without its model: end other programs, or use fewer workers"
        return Finding("memory", "problem", found, advice)
    return Finding("memory", "ok", found)


def disk() -> Finding:
    """Look at the room for runs, and for temporary files."""
    free = {place: shutil.disk_usage(place).free for place in (".", tempfile.gettempdir())}
    found = ", ".join(f"{decimal(bytes_)} free in {place}" for place, bytes_ in free.items())
    if not os.access(".", os.W_OK):
        return Finding("disk", "problem", f"{Path.cwd()} cannot be written", "go to another folder")
    if min(free.values()) < _LEAST_DISK_BYTES:
        return Finding("disk", "problem", found, "make room, or set TMPDIR to where there is some")
    return Finding("disk", "ok", found)


def gpus() -> Finding:
    """Look for GPUs, and whether torch can use them."""
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        listed = ", ".join(f"{gpu.name} ({decimal(gpu.total_memory)})" for gpu in names)
        return Finding("GPUs", "ok", listed)
    seen = _nvidia_smi()
    if seen:
        built = "was built without CUDA" if torch.version.cuda is None else "cannot reach it"
        advice = (
            "install torch for CUDA (pytorch.org/get-started)"
            if torch.version.cuda is None
            else "update the driver to that of torch's CUDA " + torch.version.cuda
        )
        return Finding("GPUs", "note", f"{seen} is there, but torch {built}", advice)
    return Finding("GPUs", "ok", "none; workers compute on the CPU")


def _nvidia_smi() -> str | None:
    """Return the GPUs that the driver lists."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ", ".join(done.stdout.split("\n")).strip(", ") or None


def nccl() -> Finding:
    """Look whether torch has NCCL, where there is more than one GPU to use it with."""
    there = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    if there:
        return Finding("NCCL", "ok", "built into torch")
    if torch.cuda.device_count() > 1:
        advice = "install torch's build for CUDA; until then tensors go through the host's memory"
        return Finding("NCCL", "note", "missing from this build of torch", advice)
    return Finding("NCCL", "ok", "missing, and not needed")


def extras() -> Finding:
    """Look for what optional parts need."""
    missing = [what for module, what in _EXTRAS.items() if importlib.util.find_spec(module) is None]
    if missing:
        names = ",".join(what.partition(" ")[0] for what in missing)
        advice = f"pip install 'drlpp[{names}]' if you need it"
        return Finding("extras", "note", f"missing: {', '.join(missing)}", advice)
    return Finding("extras", "ok", "scikit-learn and transformers are there")


def emulation() -> Finding:
    """Look whether accelerators, hosts and links can be emulated."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        os.sched_setaffinity(0, before)
    except OSError as error:
        found = f"threads cannot be kept on a core ({error.strerror})"
        return Finding("emulation", "note", found, "--speeds needs sched_setaffinity; allow it")
    lacking = [name for name in ("ip", "tc", "nsenter") if shutil.which(name) is None]
    if os.geteuid() != 0:
        lacking.append("root")
    if lacking:
        found = f"accelerators yes (--speeds); hosts and links no, without {', '.join(lacking)}"
        return Finding("emulation", "ok", found)
    return Finding("emulation", "ok", "accelerators (--speeds), hosts and links")


def host_name() -> Finding:
    """Look whether other machines could find this one by its name."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        advice = "several machines need a name or address of this one that the others reach"
        return Finding("host name", "note", f"{name} has no address", advice)
    if address.startswith("127."):
        advice = "several machines need an address of this one that the others reach"
        return Finding("host name", "note", f"{name} is {address}, this machine only", advice)
    return Finding("host name", "ok", f"{name} is {address}")


def temporary_files() -> Finding:
    """Look whether sockets can be made where temporary files go."""
    folder = tempfile.gettempdir()
    if len(folder) > _LONGEST_TEMPORARY_NAME:
        advice = "set TMPDIR to a shorter name, such as /tmp"
        return Finding("sockets", "problem", f"{folder} is too long a name for sockets", advice)
    try:
        with (
            tempfile.TemporaryDirectory() as own,
            socket.socket(socket.AF_UNIX) as made,
            socket.socket() as port,
        ):
            made.bind(f"{own}/socket")
            port.bind(("127.0.0.1", 0))
    except OSError as error:
        advice = "allow sockets in TMPDIR and ports on 127.0.0.1"
        return Finding("sockets", "problem", f"none can be made: {error}", advice)
    return Finding("sockets", "ok", f"in {folder}, and ports on 127.0.0.1")


def gloo() -> Finding:
    """Sum a tensor by Gloo, in a group of one."""
    if not torch.distributed.is_available():
        return Finding("Gloo", "problem", "torch has no distributed package", "install another")
    from drlpp.runtime.comm.mailbox import build_group

    try:
        limit = timedelta(seconds=20)
        store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=limit)
        group = build_group(store, "doctor", [0], 0, "127.0.0.1", 20.0)
        group.allreduce([torch.ones(1)]).wait()
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        advice = "allow TCP on 127.0.0.1: a firewall or a sandbox forbids it"
        return Finding("Gloo", "problem", f"does not work: {reason}", advice)
    return Finding("Gloo", "ok", "sums over 127.0.0.1")


def workers() -> Finding:
    """Start two workers, and time a message between them."""
    from drlpp.errors import DRLPPError
    from drlpp.io.formatting import seconds_text
    from drlpp.models.task import Task
    from drlpp.runtime import ClusterSession

    inputs, targets = torch.ones(2, 4), torch.zeros(2, 4)
    task = Task(torch.nn.Linear(4, 4), inputs, targets, torch.nn.functional.mse_loss)
    try:
        # What a note says of so small a model is of no use here.
        with ClusterSession(task, workers=2, device="cpu", note=lambda _: None) as session:
            _, cluster = session.profile(repeats=2)
    except (DRLPPError, OSError) as error:
        advice = "what it says; then drlpp doctor again"
        return Finding("workers", "problem", f"two could not be started: {error}", advice)
    link = cluster.within_host
    found = (
        f"two answer; a message takes {seconds_text(link.latency_seconds)}, "
        f"{decimal(round(link.bandwidth_bytes_per_second))}/s"
    )
    return Finding("workers", "ok", found)
