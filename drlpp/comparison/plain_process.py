"""The process of plain PyTorch: a user's module in an ordinary loop, without stages or messages.

It trains as a user would with the same method: the same minibatch, optimizer, precision, clipping
and accumulation, with torch's kernels and as many threads as it is given. Weight policies,
microbatches and recomputation belong to pipelines; it has none of them.
"""

from __future__ import annotations

import gc
import os
import pickle
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drlpp.comparison.plain_loop import PlainLoop
from drlpp.errors import DRLPPError, InvalidModel, ModelError, OutOfMemory
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome, WorkerUsage
from drlpp.runtime.device.devices import Accelerator, accelerator_of, is_out_of_memory, to_device
from drlpp.runtime.device.emulation import computing_on
from drlpp.runtime.ipc.protocol import Channel
from drlpp.runtime.ipc.time_limits import TimeLimits
from drlpp.runtime.worker.operator_timing import SignsOfLife
from drlpp.runtime.worker.worker_process import settle
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.kinds.one_f_one_b import ONE_F_ONE_B
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import SYNC
from drlpp.specs.optimizer_spec import OptimizerSpec


@dataclass(frozen=True)
class PlainRun:
    """What the process is to measure.

    Attributes:
        task_file: with the pickled task, in the session's folder; None if it cannot be pickled.
        problem: why it cannot.
        reference: where the task comes from otherwise.
        shapes: of the model's state by name, which tell whether it is the same.
        seed: of the model's weights and of dropout.
        method: precision, clipping and accumulation are taken from it.
        optimizer: updates the weights.
        threads: of torch; None leaves them as they are, for GPUs.
        minibatches: to measure.
        speed: below 1 it rests after every pass, as workers do that emulate accelerators.
        core: that it computes on then.
    """

    task_file: str | None
    problem: str
    reference: ModelReference
    shapes: dict[str, tuple[int, ...]]
    seed: int
    method: Method
    optimizer: OptimizerSpec
    threads: int | None
    minibatches: int
    speed: float
    core: int | None


def plain_main(channel: Channel, device: str, limits: TimeLimits) -> None:
    """Run the process: one run after another, and idle in between."""
    settle(Path(channel.folder), limits)
    accelerator: Accelerator | None = None
    try:
        while True:
            run = channel.receive()
            try:
                accelerator = accelerator or accelerator_of(device, 0)
                outcome: Outcome = _measured(run, accelerator, channel)
            except Exception as error:
                outcome = _failed(error)
            # Whoever runs next needs the memory.
            gc.collect()
            if accelerator is not None:
                accelerator.empty_cache()
            channel.send(outcome)
    except (EOFError, ConnectionError, FileNotFoundError):
        os._exit(0)


def _failed(error: Exception) -> FailedMeasurement:
    summary = " ".join(str(error).split())[:500]
    if isinstance(error, DRLPPError):
        return FailedMeasurement(failure="cannot run", reason=summary)
    kind = OutOfMemory if is_out_of_memory(error) else ModelError
    return FailedMeasurement(failure=kind.kind, reason=f"{type(error).__name__}: {summary}")


def _measured(run: PlainRun, accelerator: Accelerator, channel: Channel) -> Measurement:
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed)
    task = _task(run, Path(channel.folder))
    with computing_on(run.core):
        return train(task, run, accelerator, SignsOfLife(channel.send).now_and_then)


def _task(run: PlainRun, folder: Path) -> Task:
    """Return the user's task.

    It is the same object if it can be pickled, else another of the same factory.

    Raises:
        InvalidModel: neither can be had.
    """
    problem = run.problem
    if run.task_file is not None:
        try:
            with (folder / run.task_file).open("rb") as file:
                task: Task = pickle.load(file)
            return task
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    try:
        task = run.reference.build(run.seed)
    except InvalidModel as error:
        raise InvalidModel(
            f"the model cannot be given to another process ({problem}), nor built there ({error})"
        ) from None
    if shapes_of(task.module) != run.shapes:
        raise InvalidModel(
            f"the model cannot be given to another process ({problem}), and {run.reference} builds "
            "another one"
        )
    return task


def shapes_of(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's state by name."""
    state: dict[str, Any] = module.state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if isinstance(value, Tensor)}


def train(
    task: Task, run: PlainRun, accelerator: Accelerator, on_minibatch: Callable[[], None]
) -> Measurement:
    """Train on the task's minibatch again and again, and measure it in steady state."""
    device, method = accelerator.device, run.method
    alone = choose_method(SYNC.name, {"schedule": ONE_F_ONE_B.name}, method)
    window = Window.plan(Pipeline.straight(1), run.minibatches, alone)
    loop = PlainLoop(task, method, run.optimizer, accelerator, run.speed)
    inputs, targets = to_device((task.inputs, task.targets), device)
    accelerator.reset_peak_memory()
    clock = accelerator.new_clock()
    for _ in range(window.minibatches):
        loop.step(inputs, targets)
        clock.mark()
        on_minibatch()
    marks = window.marks(clock.moments())
    steps = [(end - begin) / window.step for begin, end in pairwise(marks)]
    seconds = marks[-1] - marks[0]
    usage = WorkerUsage(
        worker=0,
        stage=0,
        busy_seconds=seconds,
        waiting_seconds=0.0,
        peak_memory_bytes=accelerator.peak_memory_bytes(),
        bytes_sent=0,
    )
    return Measurement(
        seconds_per_minibatch=seconds / window.length,
        median_seconds=statistics.median(steps),
        standard_deviation_seconds=statistics.stdev(steps) if len(steps) > 1 else 0.0,
        minibatches=window.length,
        steadiness=1.0,
        workers=(usage,),
    )
