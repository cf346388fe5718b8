"""An ordinary loop of training in one process: forward, backward and update of a whole module."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from drlpp.models.task import Task
from drlpp.runtime.device.compiling import IN_THIS_PROCESS, without_lock_between_processes
from drlpp.runtime.device.devices import Accelerator, to_device
from drlpp.runtime.device.emulation import EmulatedAccelerator
from drlpp.runtime.stage.passes.operators import passes_in
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.schedule.method import Method
from drlpp.specs.batches import Batch, call, equal_part
from drlpp.specs.optimizer_spec import OptimizerSpec, divided, settled


class PlainLoop:
    """Trains a module as a user would: forward, backward and, when it is due, an update.

    Of the method, precision, clipping, accumulation and whether it is compiled count. Below speed 1
    it rests after every pass, as workers do that emulate accelerators. In several passes each
    computes an equal part of a minibatch.
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        optimizer: OptimizerSpec,
        accelerator: Accelerator,
        speed: float = 1.0,
        name: str = "plain PyTorch",
        passes: int = 1,
    ) -> None:
        assert task.loss is not None
        self.accelerator = accelerator
        self.module = task.module.to(accelerator.device)
        self.method = method
        self._emulated = EmulatedAccelerator(speed)
        self._passes = passes
        self._collected = 0
        self._loss_of: Callable[[Batch, Batch], Tensor] = partial(
            _loss_of, self._prepared(self.module), task.loss
        )
        self._weights = [weight for weight in self.module.parameters() if weight.requires_grad]
        self.optimizers = self._optimizers(optimizer)
        self.memory = accelerator.new_memory_count(name)
        if self.memory is not None:
            self.memory.hold(self._held())
        # The first of two updates begins the optimizer's state.
        self._still_counted = 2 * method.accumulate
        if method.compiled:
            self._compile(task)

    def _held(self) -> Iterable[Tensor]:
        """Return all that the module keeps in memory."""
        return [*self.module.parameters(), *self.module.buffers()]

    def _prepared(self, module: nn.Module) -> nn.Module:
        """Return what is called in the module's place, before its optimizers are built."""
        return module

    def _optimizer(self, spec: OptimizerSpec, weights: Sequence[Tensor]) -> Optimizer:
        return build_optimizer(spec, weights)

    def _optimizers(self, spec: OptimizerSpec) -> list[Optimizer]:
        """Return an optimizer for each group of the module's parameters."""
        names: dict[Tensor, str] = {}
        aliases: dict[str, str] = {}
        for name, weight in self.module.named_parameters(remove_duplicate=False):
            if weight.requires_grad and names.setdefault(weight, name) != name:
                aliases[name] = names[weight]
        weights = {name: weight for weight, name in names.items()}
        return [
            self._optimizer(group.optimizer, [weights[name] for name in group.names])
            for group in divided(settled(spec, weights, aliases), weights)
        ]

    def _compile(self, task: Task) -> None:
        """Compile module and loss, and compute once, which changes nothing that is trained."""
        from torch._inductor import config

        without_lock_between_processes()
        kept = [buffer.clone() for buffer in self.module.buffers()]
        self._loss_of = torch.compile(self._loss_of)
        device = self.accelerator.device
        example = to_device(self._parts(task.inputs, task.targets)[0], device)
        with (
            config.patch(IN_THIS_PROCESS),
            warnings.catch_warnings(action="ignore"),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            with passes_in(self.method.precision, device):
                loss = self._loss_of(*example)
            loss.backward()
        self.module.zero_grad(set_to_none=True)
        for buffer, value in zip(self.module.buffers(), kept, strict=True):
            buffer.copy_(value)

    def step(self, inputs: Batch, targets: Batch, *, last: bool = False) -> Tensor:
        """Train on one minibatch; return its loss.

        Args:
            inputs, targets: of the minibatch.
            last: of its epoch: an update is made of what is collected, however few.

        Raises:
            OutOfMemory: the memory of a processor is limited, and does not suffice.
        """
        if self.memory is None or not self._still_counted:
            return self._step(inputs, targets, last=last)
        self._still_counted -= 1
        with self.memory:
            return self._step(inputs, targets, last=last)

    def _step(self, inputs: Batch, targets: Batch, *, last: bool) -> Tensor:
        losses = [self._pass(*part) for part in self._parts(inputs, targets)]
        self._collected += 1
        if last or self._collected == self.method.accumulate:
            self._emulated.begin()
            self._update()
            self._emulated.rest()
        return sum(losses[1:], losses[0]) / self._passes

    def _parts(self, inputs: Batch, targets: Batch) -> list[tuple[Batch, Batch]]:
        """Return what each pass computes of a minibatch."""
        if self._passes == 1:
            return [(inputs, targets)]
        passes, whole = self._passes, (inputs, targets)
        return [equal_part(whole, number, passes) for number in range(passes)]

    def _pass(self, inputs: Batch, targets: Batch) -> Tensor:
        """Compute gradients of a part of a minibatch; return its loss."""
        self._emulated.begin()
        method, device = self.method, self.accelerator.device
        inputs, targets = to_device((inputs, targets), device)
        with passes_in(method.precision, device):
            loss = self._loss_of(inputs, targets)
        self._emulated.rest()
        self._emulated.begin()
        # The gradients of an update are the mean over its minibatches.
        factor = method.applied_loss_scale / (method.accumulate * self._passes)
        scaled = loss if factor == 1 else loss * factor
        scaled.backward()
        self._emulated.rest()
        return loss.detach()

    def _update(self) -> None:
        method = self.method
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        if self._collected < method.accumulate:
            torch._foreach_mul_(gradients, method.accumulate / self._collected)
        self._collected = 0
        if method.applied_loss_scale != 1:
            torch._foreach_div_(gradients, method.applied_loss_scale)
        finite = True
        if method.needs_norm:
            norm = nn.utils.clip_grad_norm_(self._weights, method.clip_norm or math.inf)
            finite = not method.skips_updates or bool(norm.isfinite())
        if finite:
            for optimizer in self.optimizers:
                optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)


def _loss_of(
    module: nn.Module, loss: Callable[..., Tensor], inputs: Batch, targets: Batch
) -> Tensor:
    return loss(call(module, inputs), targets)
