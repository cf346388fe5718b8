"""A worker's accelerator: which device it is, and what only that device can tell or do.

For another type of device, its row in :data:`DEVICE_KINDS`, and its word in :func:`accelerator_of`
and ``DeviceChoice``. Everything here is called in a worker, after the fork: a process that has
looked for GPUs cannot be forked and use them (``tests/runtime/device/test_devices.py``).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from drlpp.errors import InvalidCluster, InvalidInput
from drlpp.runtime.device.clocks import Clock, ProcessorClock, StreamClock
from drlpp.specs.cluster import DeviceChoice

Tree = TypeVar("Tree")

CPU = torch.device("cpu")

_OUT_OF_MEMORY_SIGNS = (
    "DefaultCPUAllocator",
    "out of memory",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)

_GPUS = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver has a folder for each GPU of the host, visible to the program or not."""

Backend = Literal["gloo", "nccl"]


class DeviceKind(NamedTuple):
    """What a type of device needs.

    Attributes:
        backend: of process groups of workers that have a device each, without the host's memory.
        has_streams: whether it works behind the process that commands it.
        staged: whether Gloo needs copies of its tensors in the host's memory.
    """

    backend: Backend
    has_streams: bool
    staged: bool


DEVICE_KINDS = {
    "cpu": DeviceKind("gloo", has_streams=False, staged=False),
    "cuda": DeviceKind("nccl", has_streams=True, staged=True),
}


@dataclass(frozen=True)
class DeviceFacts:
    """What the controller has to know of a worker's device.

    Attributes:
        type: of :data:`DEVICE_KINDS`.
        name: that a profile gives it, such as ``NVIDIA H200``.
        identity: the same for workers that share a GPU, and for no others; empty for a processor.
        memory_bytes: of a GPU; None where workers share the host's memory.
    """

    type: str = "cpu"
    name: str = "cpu"
    identity: str = ""
    memory_bytes: int | None = None

    @property
    def kind(self) -> DeviceKind:
        """What its type needs."""
        return DEVICE_KINDS[self.type]


class Accelerator:
    """The device that a worker computes on: the host's processor, or a GPU that others may share.

    Attributes:
        device: as torch knows it.
        facts: for the controller.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        self.device = device
        self.facts = DeviceFacts()
        # torch.cuda for a GPU.
        self._torch: Any = None
        if has_streams(device):
            self._torch = torch.get_device_module(device)
            # Streams, events and groups are those of the current device.
            self._torch.set_device(device)
            _start_autograd_on(device)
            found = self._torch.get_device_properties(device)
            self.facts = DeviceFacts(device.type, found.name, str(found.uuid), found.total_memory)

    def synchronize(self) -> None:
        """Wait until the device has done all its work; a processor is never behind."""
        if self._torch:
            self._torch.synchronize(self.device)

    def seconds(self) -> float:
        """Return a time to take differences of, for what the device computed in between.

        That which the processor has spent on this thread; of a GPU, when it has done all its work.
        """
        if not self._torch:
            return time.thread_time()
        self.synchronize()
        return time.perf_counter()

    def new_clock(self) -> Clock:
        """Return a clock for one run: of the process, or of the stream that passes run on."""
        if self._torch:
            return StreamClock(partial(self._torch.Event, enable_timing=True))
        return ProcessorClock()

    def reset_peak_memory(self) -> None:
        """Begin to look for the peak anew."""
        if self._torch:
            self._torch.reset_peak_memory_stats(self.device)
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak_memory_bytes(self) -> int:
        """Return the most memory in use since :meth:`reset_peak_memory`.

        Of torch's allocator, or the resident size of the process; 0 where Linux does not tell.
        """
        if self._torch:
            return int(self._torch.max_memory_allocated(self.device))
        with suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        return 0

    def empty_cache(self) -> None:
        """Return free memory to the system and other workers: the next peak leaves it out."""
        if self._torch:
            self._torch.empty_cache()
            return
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def has_streams(device: torch.device) -> bool:
    """Return whether a device works behind the process that commands it."""
    kind = DEVICE_KINDS.get(device.type)
    return kind is not None and kind.has_streams


def generator_of(device: torch.device) -> torch.Generator:
    """Return the random numbers that operators on a device draw."""
    if has_streams(device):
        found: torch.Generator = torch.get_device_module(device).default_generators[device.index]
        return found
    return torch.default_generator


def _start_autograd_on(device: torch.device) -> None:
    """Let autograd's thread of a GPU have a context; where it begins with cuBLAS, that warns."""
    torch.ones(1, device=device, requires_grad=True).mul(2).backward()


def accelerator_of(choice: str, place: int, *, on_one_host: bool = False) -> Accelerator:
    """Return the device of a worker.

    Args:
        choice: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
        place: number of the worker among those of its host, which take the host's GPUs in turns.
        on_one_host: whether all workers of the session are on this host.

    Raises:
        InvalidInput: for another choice.
        InvalidCluster: where no GPU can be had.
    """
    if known_choice(choice) is DeviceChoice.CPU:
        return Accelerator()
    # NCCL's receives wait on the GPU, and loading a kernel at its first use may wait for them.
    # It has to be said before CUDA is asked anything. With one GPU there is no NCCL.
    if not (on_one_host and _GPUS.is_dir() and len(list(_GPUS.iterdir())) == 1):
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    if torch.cuda.is_available():
        return Accelerator(torch.device("cuda", place % torch.cuda.device_count()))
    if choice == "cuda":
        raise InvalidCluster(
            "device is cuda, but PyTorch finds no GPU on this host; use device auto or cpu, or a "
            "PyTorch that was built for the GPU's driver"
        )
    return Accelerator()


def known_choice(choice: str) -> DeviceChoice:
    """Return the device choice that a word stands for.

    Raises:
        InvalidInput: if ``choice`` is neither ``auto`` nor ``cpu`` nor ``cuda``.
    """
    try:
        return DeviceChoice(choice)
    except ValueError:
        raise InvalidInput(f"device is {choice!r}; expected auto, cpu or cuda") from None


def choice_for(device: str, speeds: Sequence[float]) -> DeviceChoice:
    """Return what the workers of a session compute on; only CPUs emulate slower accelerators.

    Raises:
        InvalidInput: if GPUs are to be slower, or see :func:`known_choice`.
    """
    choice = known_choice(device)
    if min(speeds) == 1:
        return choice
    if choice is DeviceChoice.CUDA:
        raise InvalidInput(
            "speeds emulate slower accelerators with CPU workers; leave them out, or use device cpu"
        )
    return DeviceChoice.CPU


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Return the same with all tensors on ``device``; those already there are not copied."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), tree)


def to_device_async(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on ``device``, which may still be copying it.

    The copy starts from pinned memory, or the process would have to wait for it.
    """
    if tensor.device == device:
        return tensor
    if not has_streams(device):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def device_among(values: Iterable[object]) -> torch.device:
    """Return the device of an operator with these arguments: the processor if none names one."""
    for value in values:
        if isinstance(value, Tensor):
            return value.device
        if isinstance(value, torch.device):
            return value
    return CPU


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch, or of a library below it, says that memory was short."""
    text = str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(sign in text for sign in _OUT_OF_MEMORY_SIGNS)
    )
