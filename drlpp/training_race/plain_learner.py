"""Plain PyTorch in a race to a loss: the user's module in this process, with its best threads."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from drlpp.capturing.capture import CapturedModel
from drlpp.comparison.plain_loop import PlainLoop
from drlpp.errors import NotFinite, OutOfMemory
from drlpp.io.documents import replacing
from drlpp.runtime.device.devices import accelerator_of, is_out_of_memory, to_device
from drlpp.runtime.device.emulation import computing_on
from drlpp.runtime.stage.passes.precision import passes_in
from drlpp.runtime.training.data.training_data import LoaderState, TrainingData, epoch_seed, primed
from drlpp.runtime.training.training_reports import Stint
from drlpp.schedule.method import Method
from drlpp.specs.batches import call
from drlpp.specs.optimizer_spec import OptimizerSpec


class PlainLearner:
    """Trains the user's module in an ordinary loop on the same samples as the others.

    While it trains, the workers are idle, and while they train, it is.

    Args:
        captured: the model and its initial weights.
        data: to train and evaluate on.
        folder: of the checkpoint.
        method: precision, clipping and accumulation are taken from it.
        optimizer: with the learning rate.
        threads: of torch; None leaves them as they are, for GPUs.
        device: that it computes on.
        speed, core: of the accelerator that is emulated, if it is slower than this machine.
        seed: of dropout.
    """

    def __init__(
        self,
        captured: CapturedModel,
        data: TrainingData,
        folder: Path,
        method: Method,
        optimizer: OptimizerSpec,
        *,
        threads: int | None,
        device: str,
        speed: float = 1.0,
        core: int | None = None,
        seed: int = 0,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._checkpoint = folder / "plain.pt"
        self._captured = captured
        self._data = data
        self._method = method
        self._optimizer = optimizer
        self._threads = threads
        self._accelerator = accelerator_of(device, 0)
        self._speed, self._core = speed, core
        self._seed = seed
        self._state = data.state()

    @property
    def together(self) -> int:
        """Minibatches of an update."""
        return self._method.accumulate

    def train_until(self, minibatches: int) -> Stint:
        """Train on from the checkpoint; none is in memory while it is another's turn."""
        task = self._captured.task
        task = task._replace(module=initial_module(self._captured))
        try:
            loop = PlainLoop(task, self._method, self._optimizer, self._accelerator, self._speed)
            done = first = self._restore(loop)
            seconds, each = 0.0, self._data.minibatches
            with self._computing():
                loop.module.train()
                while done < minibatches:
                    stop = min(minibatches, (done // each + 1) * each)
                    seconds += self._train(loop, done, stop)
                    done = stop
                self._save(loop, done)
                loss, score = held_out(loop.module, self._captured, self._data, self._method)
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory("plain PyTorch ran out of memory") from None
            raise
        finally:
            self._accelerator.empty_cache()
        return Stint(first, done, seconds, loss, score)

    def _train(self, loop: PlainLoop, done: int, stop: int) -> float:
        """Train within an epoch, and return how long that took."""
        epoch, position = divmod(done, self._data.minibatches)
        minibatches = self._data.minibatches_here(epoch + 1, position)
        if position:
            # A loader begins the epoch anew to get there, which is no training.
            minibatches = primed(minibatches)
        begin = time.perf_counter()
        last = None
        for number, minibatch in enumerate(islice(minibatches, stop - done), done + 1):
            ends = number % self._data.minibatches == 0
            last = loop.step(minibatch.inputs, minibatch.targets, last=ends)
        if last is not None and not bool(last.isfinite()):
            raise NotFinite("the loss is not finite", stop - 1)
        self._accelerator.synchronize()
        seconds = time.perf_counter() - begin
        if stop % self._data.minibatches == 0:
            next(minibatches, None)
        # Before the iterator is closed, which may move the loader on.
        self._state = self._data.state()
        return seconds

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Compute with the threads that are its own, and with random numbers of its own."""
        before = torch.get_num_threads()
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        with torch.random.fork_rng(devices=[]), computing_on(self._core):
            torch.random.set_rng_state(self._random)
            try:
                yield
            finally:
                torch.set_num_threads(before)

    def _restore(self, loop: PlainLoop) -> int:
        if not self._checkpoint.exists():
            self._data.load_state(self._state)
            generator = torch.Generator().manual_seed(epoch_seed(self._seed, 0))
            self._random = generator.get_state()
            return 0
        saved = torch.load(self._checkpoint, weights_only=True, map_location=loop.device)
        loop.module.load_state_dict(saved["model"])
        states = saved["optimizer"]
        states = states if isinstance(states, list) else [states]
        for optimizer, state in zip(loop.optimizers, states, strict=True):
            optimizer.load_state_dict(state)
        self._random = saved["random"].cpu()
        self._data.load_state(LoaderState(*saved["data"]))
        return int(saved["done"])

    def _save(self, loop: PlainLoop, done: int) -> None:
        self._random = torch.random.get_rng_state()
        states = [optimizer.state_dict() for optimizer in loop.optimizers]
        state = {
            "model": loop.module.state_dict(),
            # Of parameters in groups, a list.
            "optimizer": states if len(states) > 1 else states[0],
            "random": self._random,
            "data": tuple(self._state),
            "done": done,
        }
        with replacing(self._checkpoint) as temporary:
            torch.save(state, temporary)


def initial_module(captured: CapturedModel) -> nn.Module:
    """Return a copy of the user's module with the initial weights."""
    module: nn.Module = copy.deepcopy(captured.task.module)
    return module.train()


def held_out(
    module: nn.Module, captured: CapturedModel, data: TrainingData, method: Method
) -> tuple[float, float | None]:
    """Return loss and score of a module on the held-out samples, in evaluation mode.

    The method has the precision, which is that of the workers' evaluation as well.
    """
    task = captured.task
    assert task.loss is not None
    losses: list[float] = []
    scores: list[Tensor] = []
    device = next((weight.device for weight in module.parameters()), torch.device("cpu"))
    module.eval()
    with torch.no_grad():
        for minibatch in data.held_out():
            inputs, targets = to_device(tuple(minibatch), device)
            with passes_in(method.precision, device):
                outputs = call(module, inputs)
                losses.append(float(task.loss(outputs, targets)))
                if task.score is not None:
                    scores.append(task.score(outputs, targets).cpu())
    module.train()
    count = data.held_out_count
    return count.mean_loss(losses), count.mean_score(scores) if scores else None
