"""Errors of CUDA that are a GPU's own, or its driver's: another GPU would not have raised them.

The process that meets one cannot use its GPU any more; a new one may, where the GPU is not broken.
If it is, a new process may find fewer GPUs than there were.
Every other error of CUDA counts as the program's: an assertion or an illegal access in a kernel
comes again wherever the model runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from drlpp.runtime.device.devices import DeviceFacts

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
