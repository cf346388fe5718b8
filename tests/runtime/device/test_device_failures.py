"""Which errors are a GPU's own, which are the model's, and which follow another worker's loss."""

import pickle

import pytest
import torch

from drlpp.errors import ModelError, OutOfMemory, WorkerLost
from drlpp.runtime.device.device_failures import (
    DEVICE_FAILURES,
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


def _of_cuda(name: str, text: str) -> torch.AcceleratorError:
    return torch.AcceleratorError(f"CUDA error: {text}{ADVICE.format(name=name)}")


def test_an_error_of_the_gpu_loses_its_worker() -> None:
    for name, text in DEVICE_FAILURES.items():
        error = failed(2, _of_cuda(name, text))
        assert str(error) == f"worker 2 lost its GPU ({text})"
        # As the controller gets it.
        assert isinstance(raised := pickle.loads(pickle.dumps(error)), WorkerLost)
        assert raised.workers == {2}


def _of_nccl(text: str) -> Exception:
    return torch.distributed.DistBackendError(OF_NCCL.format(what="…") + text)


OF_CUDA = "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure "
ERRORS: list[tuple[Exception, type[Exception]]] = [
    # Those that any GPU would raise are the model's.
    (_of_cuda("cudaErrorAssert", "device-side assert triggered"), ModelError),
    (_of_cuda("cudaErrorIllegalAddress", "an illegal memory access was encountered"), ModelError),
    (RuntimeError("CUDA error: 700"), ModelError),
    # What a model says is no GPU's error, also if it uses the same words.
    (RuntimeError("unknown error of the GPU's layer"), ModelError),
    (RuntimeError("unknown error in layer 3"), ModelError),
    (ValueError("CUDA error: unknown error"), ModelError),
    (ValueError("out of memory"), ModelError),
    (_of_cuda("cudaErrorMemoryAllocation", "out of memory"), OutOfMemory),
    (MemoryError(), OutOfMemory),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU …"), OutOfMemory),
    (
        RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: …"),
        OutOfMemory,
    ),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED in `cublasCreate(handle)`"), OutOfMemory),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), OutOfMemory),
    (_of_nccl("ncclInvalidUsage: This usually reflects invalid usage of NCCL."), ModelError),
    (_of_nccl("ncclSystemError: … Last error:\n… No space left on device (28)"), ModelError),
    (_of_nccl(f"{OF_CUDA}700 'an illegal memory access was encountered'"), ModelError),
    (_of_nccl(f"{OF_CUDA}2 'out of memory'"), OutOfMemory),
    (_of_nccl(f"{OF_CUDA}214 'uncorrectable ECC error encountered'"), WorkerLost),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS, ids=lambda value: str(value)[:40])
def test_what_else_goes_wrong_on_a_worker(error: Exception, kind: type[Exception]) -> None:
    assert type(failed(2, error)) is kind


OF_A_CONNECTION = [
    "remote process exited or there was a network error, NCCL 2.27.5\nncclRemoteError: A call "
    "failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\n"
    "NET/IB : Got completion from peer 10.0.0.2<47534>",
    "unhandled system error, NCCL 2.27.5\nncclSystemError: System call (e.g. socket, malloc) or "
    "external library call failed or device error.\nLast error:\nsocketProgress: Connection closed "
    "by remote peer 10.0.0.2<4>",
    "NCCL communicator was aborted on rank 1.",
]


@pytest.mark.parametrize("text", OF_A_CONNECTION)
def test_what_nccl_says_of_others_is_a_lost_connection_of_nobody(text: str) -> None:
    """Who it was, that worker says, or its end does."""
    raised = failed(1, _of_nccl(text))
    assert isinstance(raised, WorkerLost)
    assert str(raised).startswith("worker 1 lost its connection to another (")
    assert raised.workers == frozenset()


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
