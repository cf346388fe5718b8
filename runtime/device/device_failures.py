"""Errors of CUDA that are a GPU's own, or its driver's: another GPU would not have raised them.

The process that meets one cannot use its GPU any more; a new one may, where the GPU is not broken.
If it is, a new process may find fewer GPUs than there were.
Every other error of CUDA counts as the program's: an assertion or an illegal access in a kernel
comes again wherever the model runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from drlpp.runtime.device.devices import DeviceFacts

RUNTIME_TYPES = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
NVML = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html"
XID = "https://docs.nvidia.com/deploy/xid-errors/"


class DeviceFailure(NamedTuple):
    """An error of a GPU.

    Attributes:
        name: by which newer versions of torch tell it too; empty where it has none.
        text: what ``cudaGetErrorString`` or the driver says.
        source: that says what it means.
    """

    name: str
    text: str
    source: str = RUNTIME_TYPES


DEVICE_FAILURES = (
    DeviceFailure("cudaErrorInitializationError", "initialization error"),
    DeviceFailure("cudaErrorCudartUnloading", "driver shutting down"),
    DeviceFailure(
        "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"
    ),
    DeviceFailure("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    DeviceFailure("cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"),
    DeviceFailure(
        "cudaErrorNvlinkUncorrectable", "uncorrectable NVLink error detected during the execution"
    ),
    DeviceFailure(
        "cudaErrorContained", "Invalid access of peer GPU memory over nvlink or a hardware error"
    ),
    DeviceFailure("cudaErrorLaunchTimeout", "the launch timed out and was terminated"),
    DeviceFailure("cudaErrorHardwareStackError", "hardware stack error"),
    # Of kernels that write where they must not as well: such a worker is lost again, and given up.
    DeviceFailure("cudaErrorLaunchFailure", "unspecified launch failure"),
    DeviceFailure("cudaErrorSystemNotReady", "system not yet initialized"),
    # What a new process gets whose GPU has fallen off the bus (Xid 79).
    DeviceFailure("cudaErrorUnknown", "unknown error"),
    DeviceFailure("", "GPU is lost", NVML),
    DeviceFailure("", "GPU has fallen off the bus", XID),
)

_OF_A_GPU = re.compile(
    r"CUDA error: |Cuda failure|cudaError[A-Z]|NVML|GPU is lost|GPU has fallen", re.IGNORECASE
)
_BY_NAME = re.compile("|".join(rf"{known.name}\b" for known in DEVICE_FAILURES if known.name))
_BY_TEXT = re.compile("|".join(re.escape(known.text) for known in DEVICE_FAILURES), re.IGNORECASE)


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

    Args:
        before: the devices that workers had.
        now: of all workers that there are.
    """
    lost = []
    users: dict[str, int] = {}
    for worker, device in sorted(now.items()):
        had = before.get(worker, device)
        if had.type == device.type == "cuda":
            first = users.setdefault(device.identity, worker)
            if first != worker and before.get(first, device).identity != had.identity:
                lost.append(worker)
        elif had.type == "cuda":
            lost.append(worker)
    return tuple(lost)
