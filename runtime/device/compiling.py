"""Whether torch can compile on this machine, and how it does so in a process of ours."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import torch

from drlpp.runtime.device.devices import DEVICE_KINDS

IN_THIS_PROCESS: dict[str, Any] = {"compile_threads": 1}
"""Settings of inductor: no pool of processes, which would outlive a worker that is killed."""


@cache
def why_not_compiled(device: str = "cpu") -> str | None:
    """Return why torch cannot compile for a type of device here, None if it can."""
    # Whoever does not compile does without these imports, which take a second.
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch.utils._triton import has_triton

    if not hasattr(config, "custom_partitioner_fn"):
        return f"torch {torch.__version__} is too old to compile stages of a pipeline; install 2.13"
    if not DEVICE_KINDS[device].compiled:
        return f"nothing is compiled for {device}"
    if device != "cpu":
        return None if has_triton() else f"torch compiles for {device} with triton; install it"
    try:
        get_cpp_compiler()
    except Exception:
        return "torch compiles for CPUs with a C++ compiler, and there is none; install g++"
    return None


def without_lock_between_processes() -> None:
    """Give torch's progress bars a lock of this process.

    Torch makes one when it compiles, and never shows it; a lock between processes would be told as
    leaked when a worker ends.
    """
    from torch.hub import tqdm

    if hasattr(tqdm, "set_lock"):
        tqdm.set_lock(threading.RLock())
