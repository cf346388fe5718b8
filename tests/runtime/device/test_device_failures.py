"""Which errors are a GPU's own, which are the model's, and which follow another worker's loss."""

import pickle

import pytest
import torch

from drlpp.errors import ModelError, OutOfMemory, WorkerLost
from drlpp.runtime.device.device_failures import (
    DEVICE_FAILURES,
    device_failure,
    without_their_gpu,
)
from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.worker.worker_process import failed

# As torch 2.8 and later end every error of CUDA; the last line has an assertion in it that is none.
ADVICE = """
Search for `{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html \
for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace \
below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
OF_NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, {what}, NCCL 2.27.5\n"
)

OF_THE_MODEL = [
    ("cudaErrorAssert", "device-side assert triggered"),
    ("cudaErrorIllegalAddress", "an illegal memory access was encountered"),
]


def _of_cuda(name: str, text: str) -> torch.AcceleratorError:
    return torch.AcceleratorError(f"CUDA error: {text}{ADVICE.format(name=name)}")


def test_an_error_of_the_gpu_loses_its_worker() -> None:
    for name, text in DEVICE_FAILURES.items():
        error = failed(2, _of_cuda(name, text))
        assert str(error) == f"worker 2 lost its GPU ({text})"
        # As the controller gets it.
        assert isinstance(raised := pickle.loads(pickle.dumps(error)), WorkerLost)
        assert raised.workers == {2}


def test_an_error_that_any_gpu_would_raise_is_the_models() -> None:
    for name, text in OF_THE_MODEL:
        assert isinstance(failed(2, _of_cuda(name, text)), ModelError)


def test_no_memory_stays_what_it_is() -> None:
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has …"),
        _of_cuda("cudaErrorMemoryAllocation", "out of memory"),
    ):
        assert isinstance(failed(2, error), OutOfMemory)


def test_what_a_model_says_is_no_gpus_error() -> None:
    """Also if it uses the same words."""
    assert device_failure(RuntimeError("unknown error of the GPU's layer")) is None
    assert device_failure(RuntimeError("unknown error in layer 3")) is None
    assert device_failure(ValueError("CUDA error: unknown error")) is None


OF_A_CONNECTION = [
    (
        OF_NCCL.format(what="remote process exited or there was a network error")
        + "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.\nLast error:\nNET/IB : Got completion from peer 10.0.0.2<47534>"
    ),
    (
        OF_NCCL.format(what="unhandled system error")
        + "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
        "device error.\nLast error:\nsocketProgress: Connection closed by remote peer 10.0.0.2<4>"
    ),
    "NCCL communicator was aborted on rank 1.",
]


@pytest.mark.parametrize("text", OF_A_CONNECTION)
def test_what_nccl_says_of_others_is_a_lost_connection_of_nobody(text: str) -> None:
    """Who it was, that worker says, or its end does."""
    raised = failed(1, torch.distributed.DistBackendError(text))
    assert isinstance(raised, WorkerLost)
    assert str(raised).startswith("worker 1 lost its connection to another (")
    assert raised.workers == frozenset()


OF_THIS_HOST = {
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device "
    "error.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-1 (size 9637), "
    "error: No space left on device (28)": ModelError,
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.": ModelError,
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 700 'an "
    "illegal memory access was encountered'": ModelError,
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of "
    "memory'": OutOfMemory,
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 214 "
    "'uncorrectable ECC error encountered'": WorkerLost,
}


@pytest.mark.parametrize("text", OF_THIS_HOST)
def test_what_nccl_says_of_this_host_is_what_it_is(text: str) -> None:
    error = torch.distributed.DistBackendError(OF_NCCL.format(what="…") + text)
    assert type(failed(1, error)) is OF_THIS_HOST[text]


def _devices(gpus: str) -> dict[int, DeviceFacts]:
    """Of workers with these GPUs, a letter each; ``-`` is a processor."""
    return {
        worker: DeviceFacts() if gpu == "-" else DeviceFacts("cuda", "NVIDIA H200", gpu, 1)
        for worker, gpu in enumerate(gpus)
    }


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        ("abcd", "abcd", ()),
        ("abcd", "acda", (3,)),
        ("abcd", "acac", (2, 3)),
        ("abab", "abab", ()),
        ("abab", "aaaa", (1, 3)),
        ("abcd", "----", (0, 1, 2, 3)),
        ("ab", "a-", (1,)),
        # Another host in its place, with as many or fewer.
        ("abcd", "abef", ()),
        ("abcd", "abee", (3,)),
        ("--", "--", ()),
        ("", "aa", ()),
    ],
)
def test_workers_whose_gpu_is_gone(before: str, now: str, lost: tuple[int, ...]) -> None:
    """A host's workers take its GPUs in turns, so the ones that share are the last."""
    assert without_their_gpu(_devices(before), _devices(now)) == lost
