"""What the runtime is compared with: torch's pipelining and data parallelism, on one worker.

They compute on the same emulated accelerators as the runtime's workers: what a stage computes, the
loss, and the update rest in proportion to the processor time that they took.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.nn.parallel import DistributedDataParallel

from benchmarks.models import stage_module
from drlpp.models.model_reference import ModelReference
from drlpp.runtime.device.emulation import EmulatedAccelerator, computing_on
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.runtime.worker.worker_process import keep_freed_memory
from drlpp.specs.optimizer_spec import OptimizerSpec

BaselineName = Literal[
    "pipelining gpipe",
    "pipelining 1f1b",
    "pipelining zb1p",
    "pipelining interleaved 1f1b",
    "pipelining zbv",
    "data parallel",
]

_SCHEDULES: dict[str, Callable[..., Any]] = {
    "pipelining gpipe": ScheduleGPipe,
    "pipelining 1f1b": Schedule1F1B,
    "pipelining zb1p": ScheduleInterleavedZeroBubble,
    "pipelining interleaved 1f1b": ScheduleInterleaved1F1B,
    "pipelining zbv": ScheduleZBVZeroBubble,
}
_OF_SEVERAL_STAGES = {"pipelining zb1p", "pipelining interleaved 1f1b", "pipelining zbv"}
_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class BaselineRun:
    """What every worker has to do.

    Attributes:
        name: what to run.
        model: a chain of blocks.
        blocks: in every stage, of which a worker may have several, in turns or, of zbv, there and
            back; data parallelism has all blocks in each.
        microbatches: of a minibatch, for pipelining.
        optimizer: updates the weights.
        updates: how many, each of the model's minibatch of example samples.
        with_weights: whether to answer with the weights after them.
    """

    name: BaselineName
    model: ModelReference
    blocks: tuple[int, ...]
    microbatches: int
    optimizer: OptimizerSpec
    updates: int
    with_weights: bool = False


@dataclass(frozen=True)
class BaselineResult:
    """What a worker saw: when each update ended, and the processor seconds of each.

    ``weights`` are those of its stage by name, if they were asked for.
    """

    ends: list[float]
    processor_seconds: list[float]
    weights: dict[str, Any]


def baseline_main(
    rank: int, size: int, port: int, speed: float, core: int | None, pipe: Connection
) -> None:
    """Serve as a worker process: run after run, until the pipe is closed."""
    # Ctrl-C reaches the whole process group; the closed pipe ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    keep_freed_memory()
    gc.freeze()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    timeout = timedelta(seconds=_TIMEOUT_SECONDS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        while True:
            run = pipe.recv()
            with computing_on(core):
                result = _Baseline(run, rank, size, speed).train()
            pipe.send(result)
            gc.collect()
    except EOFError:
        dist.destroy_process_group()


class _Baseline:
    """One run on one worker."""

    def __init__(self, run: BaselineRun, rank: int, size: int, speed: float) -> None:
        self._run = run
        self._accelerator = EmulatedAccelerator(speed)
        self._used = 0.0
        task = run.model.build()
        assert task.loss is not None
        assert task.targets is not None
        self._loss, self._inputs, self._targets = task.loss, task.inputs[0], task.targets
        if run.name == "data parallel":
            self.module: nn.Module = task.module
            self._step = self._data_parallel(rank, size)
        else:
            stages: Sequence[int] = range(rank, len(run.blocks), size)
            if run.name == "pipelining zbv":
                stages = rank, len(run.blocks) - 1 - rank
            modules = {stage: stage_module(task.module, run.blocks, stage) for stage in stages}
            self.module = nn.ModuleList(modules.values())
            self._step = self._pipelined(modules)
        self._optimizer = build_optimizer(run.optimizer, list(self.module.parameters()))

    def train(self) -> BaselineResult:
        """Perform all updates."""
        ends, used = [], []
        for _ in range(self._run.updates):
            self._used = 0.0
            self._step()
            with self.computing():
                self._optimizer.step()
                self._optimizer.zero_grad()
            ends.append(time.perf_counter())
            used.append(self._used)
        dist.barrier()
        weights = {}
        if self._run.with_weights:
            # Arrays travel through a pipe whole; tensors would in shared memory.
            modules = self.module if isinstance(self.module, nn.ModuleList) else [self.module]
            weights = {
                n: p.detach().numpy() for module in modules for n, p in module.named_parameters()
            }
        return BaselineResult(ends, used, weights)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Account for what the accelerator computes in the block."""
        self._accelerator.begin()
        yield
        self._used += self._accelerator.rest()

    def computed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that the accelerator computes."""

        def compute(*args: Any, **kwargs: Any) -> Any:
            with self.computing():
                return function(*args, **kwargs)

        return compute

    def _data_parallel(self, rank: int, size: int) -> Callable[[], None]:
        parallel = DistributedDataParallel(self.module)
        inputs, targets = self._inputs.chunk(size)[rank], self._targets.chunk(size)[rank]

        def step() -> None:
            with self.computing():
                loss = self._loss(parallel(inputs), targets)
            with self.computing():
                loss.backward()

        return step

    def _pipelined(self, modules: Mapping[int, nn.Module]) -> Callable[[], None]:
        microbatches, count = self._run.microbatches, len(self._run.blocks)
        # Every block keeps the shape of the activations, so torch need not find out by running
        # the stages, which takes longer.
        example = torch.empty_like(self._inputs.chunk(microbatches)[0], device="meta")
        stages = []
        for number, module in modules.items():
            stage = PipelineStage(
                module,
                number,
                count,
                torch.device("cpu"),
                input_args=(example if number == 0 else example.clone().requires_grad_(),),
                output_args=(example.clone().requires_grad_(),),
                input_grads=(None if number == 0 else example,),
                output_grads=(example,),
            )
            for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
                setattr(stage, name, self.computed(getattr(stage, name)))
            stages.append(stage)
        schedule = _SCHEDULES[self._run.name](
            stages if self._run.name in _OF_SEVERAL_STAGES else stages[0],
            microbatches,
            loss_fn=self.computed(self._loss),
        )
        targets = self._targets if count - 1 in modules else None
        given = (self._inputs,) if 0 in modules else ()
        return lambda: schedule.step(*given, target=targets, return_outputs=False)
