"""Local SGD and DiLoCo in one process: what averages cost in samples, without workers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drlpp.capturing.capture import CapturedModel
from drlpp.runtime import Minibatches
from drlpp.runtime.device.devices import Accelerator
from drlpp.runtime.worker.plain_loop import PlainLoop
from drlpp.schedule.method import Method
from drlpp.specs.batches import chosen
from drlpp.specs.data import Samples
from drlpp.specs.optimizer_spec import OptimizerSpec


@dataclass(frozen=True)
class Averaging:
    """Weights are averaged after so many updates, or make an outer step to the average."""

    every: int
    outer: bool = False


class Averaged:
    """One run of workers that each train on a part of every minibatch.

    Args:
        captured: the model.
        workers: how many, of which each takes an equal part.
        averaging: what becomes of their weights.
        method: has the norm that gradients are clipped by.
        optimizer: of every worker.
        minibatches: where samples come from.
    """

    def __init__(
        self,
        captured: CapturedModel,
        workers: int,
        averaging: Averaging,
        method: Method,
        optimizer: OptimizerSpec,
        minibatches: Minibatches,
    ) -> None:
        self._averaging, self._minibatches, self._task = averaging, minibatches, captured.task
        tasks = [captured.task._replace(module=self._module()) for _ in range(workers)]
        self._loops = [PlainLoop(task, method, optimizer, Accelerator()) for task in tasks]
        self._outer = self._module()
        # As DiLoCo's paper has it (Douillard et al., 2023).
        outer = self._outer.parameters()
        self._steps = torch.optim.SGD(outer, lr=0.7, momentum=0.9, nesterov=True)

    def _module(self) -> nn.Module:
        return copy.deepcopy(self._task.module).train()

    def run(self) -> Iterator[float]:
        """Train, and yield the loss of every minibatch."""
        order = self._minibatches.order
        assert order is not None
        for done, which in enumerate(order, start=1):
            parts = which.tensor_split(len(self._loops))
            losses = [self._step(*one) for one in zip(self._loops, parts, strict=True)]
            if done % self._averaging.every == 0:
                self._average()
            yield sum(losses) / len(losses)

    def evaluate(self, samples: Samples) -> tuple[float, float | None]:
        """Return the loss of the mean of all weights on other samples."""
        assert self._task.loss is not None
        with torch.no_grad():
            module = self._task.module
            outputs = torch.func.functional_call(module, self._mean(), samples.inputs)
            return float(self._task.loss(outputs, samples.targets)), None

    def _step(self, loop: PlainLoop, which: Tensor) -> float:
        given = self._minibatches
        return float(loop.step(*chosen((given.samples, given.labels), which)))

    def _mean(self) -> dict[str, Tensor]:
        named = [dict(loop.module.named_parameters()) for loop in self._loops]
        return {n: torch.stack([of[n].detach() for of in named]).mean(0) for n in named[0]}

    @torch.no_grad()
    def _average(self) -> None:
        mean, outer = self._mean(), dict(self._outer.named_parameters())
        for name, weight in outer.items():
            weight.grad = weight - mean[name]
        if self._averaging.outer:
            self._steps.step()
        for loop in self._loops:
            for name, weight in loop.module.named_parameters():
                weight.copy_(outer[name] if self._averaging.outer else mean[name])
