"""Plain PyTorch: the user's module in an ordinary loop, without stages or messages.

It trains as a user would with the same method: the same minibatch, optimizer, precision, clipping
and accumulation, with torch's kernels and as many threads as it is given, compiled if the method
is: module and loss together, by ``torch.compile``, before time is taken. Weight policies,
microbatches and recomputation belong to pipelines; it has none of them. It computes in this
process, with a copy of the module; meanwhile the workers are idle. Where they emulate slower
accelerators it computes on one of the fastest of these.
"""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DRLPPError, ModelError, NotFinite, OutOfMemory
from drlpp.io.files import replacing
from drlpp.models.task import Task
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.racing.contenders import Contender
from drlpp.runtime.device.devices import accelerator_of, is_out_of_memory, to_device
from drlpp.runtime.device.emulation import (
    available_cores,
    computing_on,
    cores_for,
)
from drlpp.runtime.session.measuring import measurement_of_whole, window_of_whole
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.stage.passes.operators import passes_in
from drlpp.runtime.training.training_data import LoaderState, TrainingData, epoch_seed
from drlpp.runtime.training.training_plan import Stint
from drlpp.runtime.worker.plain_loop import PlainLoop
from drlpp.schedule.method import Method
from drlpp.specs.batches import call
from drlpp.specs.optimizer_spec import OptimizerSpec

MODULE_CHECKPOINT = "module.pt"
"""In the folder of a training without a placement; the model's weights are its ``model``."""


@contextmanager
def _computing(
    session: ClusterSession, one: Contender, optimizer: OptimizerSpec, seed: int
) -> Iterator[PlainLoop]:
    """Compute with a copy of the user's module, and with threads and random numbers of its own."""
    speed = max(session.speeds[worker] for worker in session.present)
    cores = tuple(available_cores())
    core = cores_for([speed], [("here", cores)])[0] if speed < 1 else None
    limits = [session.memory_bytes[worker] or math.inf for worker in session.present]
    limit = max(limits) if max(limits) < math.inf else None
    accelerator = accelerator_of(session.device.value, 0, limit)
    before = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]), computing_on(core):
            if one.threads is not None:
                torch.set_num_threads(one.threads)
            torch.default_generator.manual_seed(seed)
            task = session.captured.task_with_loss
            task = task._replace(module=initial_module(session.captured))
            yield PlainLoop(task, one.method, optimizer, accelerator, speed, passes=one.passes)
    finally:
        torch.set_num_threads(before)
        # Whatever runs next needs the memory.
        gc.collect()
        accelerator.empty_cache()


def measure_plain(session: ClusterSession, one: Contender, minibatches: int) -> Outcome:
    """Measure seconds per minibatch in steady state; what goes wrong is a failed measurement.

    Args:
        session: with the model, the optimizer and the device.
        one: its method's precision, clipping and accumulation count, and the threads of torch.
        minibatches: over how many.
    """
    try:
        with _computing(session, one, session.optimizer, session.seed) as loop:
            return _measured(loop, session.captured.task, minibatches)
    except DRLPPError as error:
        failure = error.kind if isinstance(error, OutOfMemory) else "cannot run"
        return FailedMeasurement(failure=failure, reason=str(error))
    except Exception as error:
        kind = OutOfMemory if is_out_of_memory(error) else ModelError
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        return FailedMeasurement(failure=kind.kind, reason=reason)


def _measured(loop: PlainLoop, task: Task, minibatches: int) -> Measurement:
    """Train on the task's minibatch again and again, and measure it in steady state."""
    window = window_of_whole(minibatches, loop.method)
    inputs, targets = to_device((task.inputs, task.targets), loop.accelerator.device)
    loop.accelerator.reset_peak_memory()
    clock = loop.accelerator.new_clock()
    for _ in range(window.minibatches):
        loop.step(inputs, targets)
        clock.mark()
    marks = window.marks(clock.moments())
    peak = (loop.memory or loop.accelerator).peak_memory_bytes()
    return measurement_of_whole(marks, window, {0: peak})


@dataclass
class ModuleLearner:
    """Trains the user's module on the same samples as the others; pauses between evaluations.

    Attributes:
        session: with the model and the device.
        one: how: its method's precision, clipping and accumulation count; threads, or processes.
        data: to train and evaluate on.
        folder: of the checkpoint.
        optimizer: with the learning rate.
        seed: of dropout.
    """

    session: ClusterSession
    one: Contender
    data: TrainingData
    folder: Path
    optimizer: OptimizerSpec
    seed: int = 0

    def __post_init__(self) -> None:
        self._checkpoint = self.folder / MODULE_CHECKPOINT
        self._data_state = self.data.state()


class PlainLearner(ModuleLearner):
    """Does so with plain PyTorch, in this process."""

    def train_until(self, minibatches: int) -> Stint:
        """Train until so many minibatches are done in all, keep a checkpoint, and evaluate.

        It continues from the checkpoint; nothing is in memory while it is another's turn.

        Raises:
            RunFailure: it cannot go further.
        """
        seconds, each = 0.0, self.data.minibatches
        try:
            with _computing(
                self.session, self.one, self.optimizer, epoch_seed(self.seed, 0)
            ) as loop:
                done = first = self._restore(loop)
                while done < minibatches:
                    stop = min(minibatches, (done // each + 1) * each)
                    seconds += self._train(loop, done, stop)
                    done = stop
                self._save(loop, done)
                task = self.session.captured.task
                loss = held_out_loss(loop.module, task, self.data, loop.method)
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory("plain PyTorch ran out of memory") from None
            raise
        return Stint(first, done, seconds, loss, None)

    def _train(self, loop: PlainLoop, done: int, stop: int) -> float:
        """Train within an epoch, and return how long that took."""
        epoch, position = divmod(done, self.data.minibatches)
        minibatches = self.data.minibatches_here(epoch + 1, position)
        begin = time.perf_counter()
        last = None
        for number, minibatch in enumerate(islice(minibatches, stop - done), done + 1):
            ends = number % self.data.minibatches == 0
            last = loop.step(minibatch.inputs, minibatch.targets, last=ends)
        if last is not None and not bool(last.isfinite()):
            raise NotFinite("the loss is not finite", stop - 1)
        loop.accelerator.synchronize()
        seconds = time.perf_counter() - begin
        if stop % self.data.minibatches == 0:
            next(minibatches, None)
        # Before the iterator is closed, which may move the loader on.
        self._data_state = self.data.state()
        return seconds

    def _restore(self, loop: PlainLoop) -> int:
        """Take over the checkpoint, if there is one; return how many minibatches are done."""
        if not self._checkpoint.exists():
            self.data.load_state(self._data_state)
            return 0
        saved = torch.load(self._checkpoint, weights_only=True, map_location="cpu")
        loop.module.load_state_dict(saved["model"])
        for optimizer, state in zip(loop.optimizers, saved["optimizer"], strict=True):
            optimizer.load_state_dict(state)
        torch.random.set_rng_state(saved["random"])
        self.data.load_state(LoaderState(*saved["data"]))
        return int(saved["done"])

    def _save(self, loop: PlainLoop, done: int) -> None:
        state = {
            "model": loop.module.state_dict(),
            "optimizer": [optimizer.state_dict() for optimizer in loop.optimizers],
            "random": torch.random.get_rng_state(),
            "data": tuple(self._data_state),
            "done": done,
        }
        with replacing(self._checkpoint) as temporary:
            torch.save(state, temporary)


def initial_module(captured: CapturedModel) -> nn.Module:
    """Return a copy of the user's module with the initial weights."""
    module: nn.Module = copy.deepcopy(captured.task.module)
    return module.train()


def held_out_loss(module: nn.Module, task: Task, data: TrainingData, method: Method) -> float:
    """Return the loss of a module on the held-out samples, in evaluation mode.

    The method has the precision, which is that of the workers' evaluation as well.
    """
    assert task.loss is not None
    losses: list[float] = []
    device = next((weight.device for weight in module.parameters()), torch.device("cpu"))
    module.eval()
    with torch.no_grad():
        for minibatch in data.held_out():
            inputs, targets = to_device(tuple(minibatch), device)
            with passes_in(method.precision, device):
                losses.append(float(task.loss(call(module, inputs), targets)))
    return data.held_out_count.mean_loss(losses)
