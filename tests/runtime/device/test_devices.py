"""What a worker computes on, and whose an error is; GPUs are stood in for."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from drlpp.errors import InvalidInput, ModelError, OutOfMemory, WorkerLost
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession
from drlpp.runtime.device import devices
from drlpp.runtime.device.devices import (
    DEVICE_FAILURES,
    DeviceFacts,
    accelerator_of,
    device_among,
    without_their_gpu,
)
from drlpp.runtime.stage.passes import operators
from drlpp.runtime.worker.worker_process import failed

PERCEPTRON = ModelReference.named("tests.support.models.small:perceptron")


@dataclass(frozen=True)
class Properties:
    """What torch tells of a GPU."""

    name: str
    uuid: str
    total_memory: int


@pytest.fixture(autouse=True)
def no_choice_of_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the environment as it was."""
    monkeypatch.setenv("CUDA_MODULE_LOADING", "")
    monkeypatch.delenv("CUDA_MODULE_LOADING")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A host with two GPUs, as far as it is asked; returns the current device, if any."""
    chosen: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(devices, "_start_autograd_on", lambda _: None)
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda _: True)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: Properties("Some GPU", f"uuid-{device.index}", 16 * 2**30),
    )
    return chosen


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (torch.cuda, torch.xpu, torch.mps):
        monkeypatch.setattr(module, "is_available", lambda: False)


class Event:
    """Of a device whose work takes a second."""

    made = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.made += 1
        self.number = Event.made

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: "Event") -> float:
        return 1000.0 * (other.number - self.number)


@pytest.mark.parametrize(("kind", "index", "memory"), [("xpu", 1, 2**34), ("mps", 0, 2**33)])
def test_gpus_of_intel_and_apple(
    monkeypatch: pytest.MonkeyPatch, no_gpu: None, kind: str, index: int, memory: int
) -> None:
    """As far as torch's modules are asked, which this one stands for."""
    module = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1 + index,
        set_device=lambda device: calls.append(f"set {device.index}"),
        synchronize=lambda device: calls.append(f"synchronize {device.index}"),
        get_device_properties=lambda device: Properties("Arc", f"uuid-{device.index}", 2**34),
        recommended_max_memory=lambda: 2**33,
        Event=Event,
        reset_peak_memory_stats=lambda device: calls.append(f"reset {device.index}"),
        max_memory_allocated=lambda device: 7000,
        empty_cache=lambda: None,
        driver_allocated_memory=lambda: 7000,
        default_generators=[torch.Generator(), torch.Generator()],
        manual_seed=lambda seed: calls.append(f"seed {seed}"),
        calls=(calls := []),
    )
    if kind == "mps":
        # Its functions name no device.
        module.synchronize = lambda: calls.append("synchronize 0")
    monkeypatch.setattr(torch, kind, module)
    # Torch would remember its own modules.
    monkeypatch.setattr(
        torch, "get_device_module", lambda device: getattr(torch, torch.device(device).type)
    )
    monkeypatch.setattr(devices, "_start_autograd_on", lambda _: None)
    accelerator = accelerator_of("auto", 3)
    assert accelerator.device == torch.device(kind, index) == accelerator_of(kind, 3).device
    assert (accelerator.facts.type, accelerator.facts.memory_bytes) == (kind, memory)
    clock = accelerator.new_clock()
    clock.mark()
    clock.mark()
    first, second = clock.moments()
    assert second - first == pytest.approx(1.0)
    accelerator.reset_peak_memory()
    assert accelerator.peak_memory_bytes() == 7000
    accelerator.synchronize()
    assert calls[-1] == f"synchronize {index}"
    devices.seed_generator(accelerator.device, 12)
    assert calls[-1] == "seed 12" or module.default_generators[index].initial_seed() == 12


@pytest.mark.parametrize(("choice", "place", "index"), [("auto", 0, 0), ("cuda", 5, 1)])
def test_workers_of_a_host_take_its_gpus_in_turns(
    two_gpus: list[object], choice: str, place: int, index: int
) -> None:
    accelerator = accelerator_of(choice, place)
    assert accelerator.device == torch.device("cuda", index)
    assert two_gpus == [accelerator.device]
    assert accelerator.facts == devices.DeviceFacts("cuda", "Some GPU", f"uuid-{index}", 16 * 2**30)


def test_kernels_are_loaded_before_anything_waits_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA reads the variable when it is first asked; a user's own choice stays."""
    asked: list[str | None] = []

    def is_available() -> bool:
        asked.append(os.environ.get("CUDA_MODULE_LOADING"))
        return False

    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    accelerator_of("auto", 0)
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    accelerator_of("auto", 0)
    assert asked == ["EAGER", "LAZY"]


@pytest.mark.parametrize(
    ("gpus", "on_one_host", "loading"),
    [(1, True, None), (1, False, "EAGER"), (2, True, "EAGER"), (0, True, "EAGER")],
)
def test_with_one_gpu_workers_start_sooner(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    no_gpu: None,
    gpus: int,
    loading: str | None,
    *,
    on_one_host: bool,
) -> None:
    """Without NCCL nothing waits on the GPU, and kernels are loaded when they are needed."""
    for gpu in range(gpus):
        (tmp_path / f"0000:00:0{gpu}.0").mkdir()
    monkeypatch.setattr(devices, "_GPUS", tmp_path)
    accelerator_of("auto", 0, on_one_host=on_one_host)
    assert os.environ.get("CUDA_MODULE_LOADING") == loading


def test_a_processor_where_it_is_asked_for_or_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert accelerator_of("cpu", 0).facts == devices.DeviceFacts()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert accelerator_of("auto", 3).facts == devices.DeviceFacts()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: accelerator_of("cuda", 0), "device is cuda, but PyTorch finds no GPU on this"),
        (lambda: accelerator_of("xpu", 0), "device is xpu, but PyTorch finds no GPU on this"),
        (lambda: accelerator_of("mps", 0), "device is mps, but PyTorch finds no GPU on this"),
        (
            lambda: ClusterSession(PERCEPTRON, device="tpu"),
            "'tpu'; expected auto, cpu, cuda, xpu or mps",
        ),
        (
            lambda: ClusterSession(PERCEPTRON, 2, speeds=[1, 0.5], device="cuda"),
            "speeds emulate slower accelerators with CPU workers",
        ),
    ],
)
def test_what_no_worker_can_be_is_refused(
    no_gpu: None, call: Callable[[], object], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        call()


_WATCHED = """
import torch.cuda
for name in ("is_available", "device_count", "_lazy_init", "current_device", "init"):
    def fail(*args, name=name, **kwargs):
        raise SystemExit(f"torch.cuda.{name} was called")
    setattr(torch.cuda, name, fail)
for module in MODULES:
    __import__(module)
assert not torch.cuda.is_initialized()
"""


@pytest.mark.system
def test_nothing_looks_for_gpus_before_the_fork() -> None:
    """CUDA refuses to work in the child of a process that has counted the GPUs."""
    with ClusterSession(PERCEPTRON, 1, device="cpu") as session:
        session.profile(repeats=1)
        preloaded = forkserver._forkserver._preload_modules  # type: ignore[attr-defined]
    assert "drlpp.runtime.worker.worker_process" in preloaded
    code = _WATCHED.replace("MODULES", repr(preloaded))
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_an_operator_works_where_its_arguments_say() -> None:
    here, there = torch.ones(1), torch.ones(1, device="meta")
    assert device_among([0.5, there, here]) == there.device
    assert device_among([(2,), torch.device("cuda", 1)]) == torch.device("cuda", 1)
    assert device_among([0.5, None]) == torch.device("cpu")


def test_random_numbers_come_from_the_generator_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generators = [torch.Generator(), torch.Generator()]
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    before = torch.default_generator.get_state()
    drawn = []
    for _ in range(2):
        operators.begin_pass(seed=1, part=(2, 0))
        operators.seeded("mask", lambda device: None, torch.device("cuda", 1))
        drawn.append(torch.rand(4, generator=generators[1]))
    torch.testing.assert_close(drawn[0], drawn[1], rtol=0, atol=0)
    assert torch.equal(torch.default_generator.get_state(), before)
    assert generators[0].initial_seed() != generators[1].initial_seed()


# As torch ends every error of CUDA; the last line has an assertion in it that is none.
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
    (RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: …"), OutOfMemory),
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
