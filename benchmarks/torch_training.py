"""What the runtime is compared with: torch's pipelining and data parallelism, on one worker.

They compute on the same emulated accelerators as the runtime's workers: what a stage computes, the
loss, and the update rest in proportion to the processor time that they took.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
)

from benchmarks.models import stage_module
from drlpp.errors import TrialTimeout, WorkerLost
from drlpp.models.model_reference import ModelReference
from drlpp.runtime.device.devices import Accelerator
from drlpp.runtime.device.emulation import (
    EmulatedAccelerator,
    available_cores,
    computing_on,
    cores_for,
)
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.runtime.worker.parallel_loop import ParallelLoop
from drlpp.runtime.worker.worker_process import keep_freed_memory
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

BaselineName = Literal["pipelining gpipe", "pipelining 1f1b", "data parallel"]

_SCHEDULES: dict[str, Callable[..., Any]] = {
    "pipelining gpipe": ScheduleGPipe,
    "pipelining 1f1b": Schedule1F1B,
}
_TIMEOUT_SECONDS = 120.0
_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class BaselineRun:
    """What every worker has to do.

    Attributes:
        name: what to run.
        model: a chain of blocks.
        blocks: in every stage; data parallelism has all blocks in each worker.
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
        task = run.model.build()
        assert task.loss is not None
        assert task.targets is not None
        self._loss, self._inputs, self._targets = task.loss, task.inputs[0], task.targets
        if run.name == "data parallel":
            self.module: nn.Module = task.module
            sync, accelerator = Method(schedule="1f1b", policy="sync"), Accelerator()
            loop = ParallelLoop("ddp", task, sync, run.optimizer, accelerator, speed)
            self._step: Callable[[], object] = lambda: loop.step(task.inputs, task.targets)
        else:
            self.module = stage_module(task.module, run.blocks, rank)
            self._step = self._pipelined(rank)

    def train(self) -> BaselineResult:
        """Perform all updates."""
        ends, used = [], []
        for _ in range(self._run.updates):
            before = time.thread_time()
            self._step()
            ends.append(time.perf_counter())
            used.append(time.thread_time() - before)
        dist.barrier()
        weights = {}
        if self._run.with_weights:
            # Arrays travel through a pipe whole; tensors would in shared memory.
            weights = {n: p.detach().numpy() for n, p in self.module.named_parameters()}
        return BaselineResult(ends, used, weights)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Rest for what the accelerator computes in the block."""
        self._accelerator.begin()
        yield
        self._accelerator.rest()

    def computed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that the accelerator computes."""

        def compute(*args: Any, **kwargs: Any) -> Any:
            with self.computing():
                return function(*args, **kwargs)

        return compute

    def _pipelined(self, rank: int) -> Callable[[], None]:
        microbatches, count = self._run.microbatches, len(self._run.blocks)
        # Every block keeps the shape of the activations, so torch need not find out by running
        # the stages, which takes longer.
        example = torch.empty_like(self._inputs.chunk(microbatches)[0], device="meta")
        stage = PipelineStage(
            self.module,
            rank,
            count,
            torch.device("cpu"),
            input_args=(example if rank == 0 else example.clone().requires_grad_(),),
            output_args=(example.clone().requires_grad_(),),
            input_grads=(None if rank == 0 else example,),
            output_grads=(example,),
        )
        for name in ("forward_one_chunk", "backward_one_chunk"):
            setattr(stage, name, self.computed(getattr(stage, name)))
        schedule = _SCHEDULES[self._run.name](
            stage, microbatches, loss_fn=self.computed(self._loss)
        )
        targets = self._targets if rank == count - 1 else None
        given = (self._inputs,) if rank == 0 else ()
        optimizer = build_optimizer(self._run.optimizer, list(self.module.parameters()))

        def step() -> None:
            schedule.step(*given, target=targets, return_outputs=False)
            with self.computing():
                optimizer.step()
                optimizer.zero_grad()

        return step


@dataclass
class BaselineProcesses:
    """Processes that take run after run; use it as a context manager.

    Attributes:
        speeds: of every accelerator; each is a process.
        timeout_seconds: for one run.
    """

    speeds: Sequence[float]
    timeout_seconds: float = 300.0
    _processes: list[BaseProcess] = field(default_factory=list)
    _pipes: list[Connection] = field(default_factory=list)

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        size = len(self.speeds)
        here = [("localhost", available_cores())] * size
        for rank, core in enumerate(cores_for(self.speeds, here)):
            ours, theirs = context.Pipe()
            arguments = (rank, size, self._store.port, self.speeds[rank], core, theirs)
            process = context.Process(target=baseline_main, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0 if error else _GRACE_SECONDS)
            process.kill()
            process.join()

    def run(self, run: BaselineRun) -> list[BaselineResult]:
        """Run, and return what every process saw.

        Raises:
            RunFailure: a process ended or did not answer; none is to be used after that.
        """
        results = []
        for rank, pipe in enumerate(self._pipes):
            with self._telling_of_loss(run, rank):
                pipe.send(run)
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(self.timeout_seconds):
                raise TrialTimeout(
                    f"{run.name}: process {rank} did not answer within {self.timeout_seconds:.0f} s"
                )
            with self._telling_of_loss(run, rank):
                results.append(pipe.recv())
        return results

    @contextmanager
    def _telling_of_loss(self, run: BaselineRun, rank: int) -> Iterator[None]:
        try:
            yield
        # At its end, or, where it has left something unread or is written to, a broken connection.
        except (EOFError, ConnectionError):
            self._processes[rank].join(_GRACE_SECONDS)
            code = self._processes[rank].exitcode
            raise WorkerLost(
                f"{run.name}: process {rank} ended with exit code {code}; see above why"
            ) from None
