"""A worker's accelerator: which device it is, and what only that device can tell or do.

For another type of device, its row in :data:`DEVICE_KINDS`, and its word in ``DeviceType`` and
``DeviceChoice`` (``drlpp/specs/cluster.py``). Everything here is called in a worker, after the
fork: a process that has looked for GPUs cannot be forked and use them
(``tests/runtime/device/test_devices.py``).
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from drlpp.costs.memory_count import MemoryCount
from drlpp.errors import InvalidCluster, InvalidInput
from drlpp.runtime.device.clocks import Clock, StreamClock
from drlpp.specs.cluster import DeviceChoice, DeviceType

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

Backend = Literal["gloo", "nccl", "xccl"]


class DeviceKind(NamedTuple):
    """What a type of device needs.

    All but processors work behind the process that commands them, are timed by events, and have
    tensors that Gloo sends from copies in the host's memory.

    Attributes:
        backend: of process groups of workers that have a device each, without the host's memory.
        has_streams: whether torch gives access to streams of several devices; then it has pinned
            memory, a generator for each device, and statistics of its allocator.
        gloo_sums: whether Gloo can sum its tensors without such copies.
        compiled: whether stages are compiled for it, which takes triton on a GPU.
    """

    backend: Backend
    has_streams: bool
    gloo_sums: bool
    compiled: bool = True


DEVICE_KINDS: dict[str, DeviceKind] = {
    "cpu": DeviceKind("gloo", has_streams=False, gloo_sums=True),
    "cuda": DeviceKind("nccl", has_streams=True, gloo_sums=True),
    "xpu": DeviceKind("xccl", has_streams=True, gloo_sums=False),
    "mps": DeviceKind("gloo", has_streams=False, gloo_sums=False, compiled=False),
}
"""``auto`` takes the first type of GPU that torch finds here."""


@dataclass(frozen=True)
class DeviceFacts:
    """What the controller has to know of a worker's device.

    Attributes:
        type: of :data:`DEVICE_KINDS`.
        name: that a profile gives it, such as ``NVIDIA H200``.
        identity: the same for workers that share a GPU, and for no others; empty for a processor.
        memory_bytes: of a GPU, or a declared limit; None where workers share the host's memory.
        has_backend: whether this torch has the process groups of its type.
    """

    type: DeviceType = "cpu"
    name: str = "cpu"
    identity: str = ""
    memory_bytes: int | None = None
    has_backend: bool = True

    @property
    def backend(self) -> Backend:
        """That of its type's process groups, or Gloo where torch was built without it."""
        return DEVICE_KINDS[self.type].backend if self.has_backend else "gloo"


class Accelerator:
    """The device that a worker computes on: the host's processor, or a GPU that others may share.

    Args:
        device: as torch knows it.
        memory_bytes: less than it has, if it is not to use more.
    """

    def __init__(self, device: torch.device = CPU, memory_bytes: float | None = None) -> None:
        self.device = device
        self.facts = DeviceFacts(memory_bytes=None if memory_bytes is None else int(memory_bytes))
        # Such as torch.cuda, for a GPU.
        self._torch: Any = None
        self._kind = DEVICE_KINDS[device.type]
        if device.type != "cpu":
            self._torch = torch.get_device_module(device)
            if self._kind.has_streams:
                # Streams, events and groups are those of the current device.
                self._torch.set_device(device)
            _start_autograd_on(device)
            self.facts = facts_of(device)
            total = self.facts.memory_bytes
            if total is not None and memory_bytes is not None and memory_bytes < total:
                self._torch.set_per_process_memory_fraction(memory_bytes / total)
                self.facts = replace(self.facts, memory_bytes=int(memory_bytes))

    def new_memory_count(self, holder: str) -> MemoryCount | None:
        """Return what counts the memory of a processor that has a limit; a GPU's does torch."""
        if self._torch or self.facts.memory_bytes is None:
            return None
        return MemoryCount(self.facts.memory_bytes, holder)

    def synchronize(self) -> None:
        """Wait until the device has done all its work; a processor is never behind."""
        if self._kind.has_streams:
            self._torch.synchronize(self.device)
        elif self._torch:
            self._torch.synchronize()

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
        return Clock()

    def reset_peak_memory(self) -> None:
        """Begin to look for the peak anew."""
        if self._kind.has_streams:
            self._torch.reset_peak_memory_stats(self.device)
            return
        if self._torch:
            # What its driver has allocated stays until then.
            self._torch.empty_cache()
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak_memory_bytes(self) -> int:
        """Return the most memory in use since :meth:`reset_peak_memory`.

        Of torch's allocator, or of its driver's where that alone tells, free memory included; or
        the resident size of the process, 0 where Linux does not tell.
        """
        if self._kind.has_streams:
            return int(self._torch.max_memory_allocated(self.device))
        if self._torch:
            return int(self._torch.driver_allocated_memory())
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


def facts_of(device: torch.device) -> DeviceFacts:
    """Ask torch about a GPU."""
    module: Any = torch.get_device_module(device)
    type_, kind = cast(DeviceType, device.type), DEVICE_KINDS[device.type]
    if not kind.has_streams:
        # A host has one, which has no properties, and shares the host's memory.
        memory = int(module.recommended_max_memory())
        return DeviceFacts(type_, f"{type_} of {platform.machine()}", platform.node(), memory)
    found = module.get_device_properties(device)
    there = dist.is_available() and dist.is_backend_available(kind.backend)
    return DeviceFacts(type_, found.name, str(found.uuid), found.total_memory, there)


def has_streams(device: torch.device) -> bool:
    """Return whether a device has streams, and so copies from and to pinned memory meanwhile."""
    kind = DEVICE_KINDS.get(device.type)
    return kind is not None and kind.has_streams


def seed_generator(device: torch.device, seed: int) -> None:
    """Seed the random numbers that operators on a device draw, and those of no other device."""
    if has_streams(device):
        torch.get_device_module(device).default_generators[device.index].manual_seed(seed)
    elif device.type == "cpu" or device.type not in DEVICE_KINDS:
        torch.default_generator.manual_seed(seed)
    else:
        torch.get_device_module(device).manual_seed(seed)


def _start_autograd_on(device: torch.device) -> None:
    """Let autograd's thread of a GPU have a context; where it begins with cuBLAS, that warns."""
    torch.ones(1, device=device, requires_grad=True).mul(2).backward()


def accelerator_of(
    choice: str, place: int, memory_bytes: float | None = None, *, on_one_host: bool = False
) -> Accelerator:
    """Return the device of a worker.

    Args:
        choice: a type of :data:`DEVICE_KINDS`, or ``auto`` for a GPU where there is one.
        place: number of the worker among those of its host, which take the host's GPUs in turns.
        memory_bytes: that it may use; None for all that there is.
        on_one_host: whether all workers of the session are on this host.

    Raises:
        InvalidInput: for another choice.
        InvalidCluster: where no such GPU can be had.
    """
    chosen = known_choice(choice)
    if chosen is DeviceChoice.CPU:
        return Accelerator(memory_bytes=memory_bytes)
    # NCCL's receives wait on the GPU, and loading a kernel at its first use may wait for them.
    # It has to be said before CUDA is asked anything. With one GPU there is no NCCL.
    if not (on_one_host and _GPUS.is_dir() and len(list(_GPUS.iterdir())) == 1):
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    for kind in DEVICE_KINDS if chosen is DeviceChoice.AUTO else [chosen.value]:
        if count := 0 if kind == "cpu" else devices_here(kind):
            return Accelerator(torch.device(kind, place % count), memory_bytes)
    if chosen.demands_gpu:
        raise InvalidCluster(
            f"device is {choice}, but PyTorch finds no GPU on this host; use device auto or cpu, "
            "or a PyTorch that was built for the GPU's driver"
        )
    return Accelerator(memory_bytes=memory_bytes)


def devices_here(kind: str) -> int:
    """Return how many devices of a type of GPUs torch can use on this host."""
    module = getattr(torch, kind)
    return int(module.device_count()) if module.is_available() else 0


def known_choice(choice: str) -> DeviceChoice:
    """Return the device choice that a word stands for.

    Raises:
        InvalidInput: for a word that is none.
    """
    try:
        return DeviceChoice(choice)
    except ValueError:
        *words, last = DeviceChoice
        raise InvalidInput(f"device is {choice!r}; expected {', '.join(words)} or {last}") from None


def choice_for(device: str, speeds: Sequence[float]) -> DeviceChoice:
    """Return what the workers of a session compute on; only CPUs emulate slower accelerators.

    Raises:
        InvalidInput: if GPUs are to be slower, or see :func:`known_choice`.
    """
    choice = known_choice(device)
    if min(speeds) == 1:
        return choice
    if choice.demands_gpu:
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


# Errors of CUDA that are a GPU's own, or its driver's: another GPU would not have raised them. The
# process that meets one cannot use its GPU any more; a new one may, where the GPU is not broken. If
# it is, a new process may find fewer GPUs than there were. Every other error of CUDA counts as the
# program's: an assertion or an illegal access in a kernel comes again wherever the model runs.
# See https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
DEVICE_FAILURES = {
    "cudaErrorInitializationError": "initialization error",
    "cudaErrorCudartUnloading": "driver shutting down",
    "cudaErrorDevicesUnavailable": "CUDA-capable device(s) is/are busy or unavailable",
    "cudaErrorNoDevice": "no CUDA-capable device is detected",
    "cudaErrorECCUncorrectable": "uncorrectable ECC error encountered",
    "cudaErrorNvlinkUncorrectable": "uncorrectable NVLink error detected during the execution",
    "cudaErrorContained": "Invalid access of peer GPU memory over nvlink or a hardware error",
    "cudaErrorLaunchTimeout": "the launch timed out and was terminated",
    "cudaErrorHardwareStackError": "hardware stack error",
    # Of kernels that write where they must not as well: such a worker is lost again, and given up.
    "cudaErrorLaunchFailure": "unspecified launch failure",
    "cudaErrorSystemNotReady": "system not yet initialized",
    # What a new process gets whose GPU has fallen off the bus (Xid 79).
    "cudaErrorUnknown": "unknown error",
    # Of NVML and the driver.
    "NVML_ERROR_GPU_IS_LOST": "GPU is lost",
    "Xid 79": "GPU has fallen off the bus",
}
"""What ``cudaGetErrorString`` says of errors that are a GPU's own, by their names."""

_OF_A_GPU = re.compile(
    r"CUDA error: |Cuda failure|cudaError[A-Z]|NVML|GPU is lost|GPU has fallen", re.IGNORECASE
)
_BY_NAME = re.compile("|".join(rf"{name}\b" for name in DEVICE_FAILURES))
_BY_TEXT = re.compile("|".join(map(re.escape, DEVICE_FAILURES.values())), re.IGNORECASE)


def device_failure(error: BaseException) -> str | None:
    """Return what an error says of the GPU that failed; None for any other error."""
    text = str(error)
    if not isinstance(error, RuntimeError) or not _OF_A_GPU.search(text):
        return None
    found = _BY_TEXT.search(text) or _BY_NAME.search(text)
    return found and found[0]


def without_their_gpu(
    before: Mapping[int, DeviceFacts], now: Mapping[int, DeviceFacts]
) -> tuple[int, ...]:
    """Return the workers that had a GPU before they were replaced, and have none left.

    Workers take the GPUs of a host in turns, so where one is gone, those behind it have moved up,
    and the last shares the first's.
    """
    lost = []
    users: dict[str, int] = {}
    for worker, device in sorted(now.items()):
        had = before.get(worker, device)
        if had.type == device.type != "cpu":
            first = users.setdefault(device.identity, worker)
            if first != worker and before.get(first, device).identity != had.identity:
                lost.append(worker)
        elif had.type != "cpu":
            lost.append(worker)
    return tuple(lost)
