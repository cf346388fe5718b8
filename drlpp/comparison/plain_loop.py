"""The ordinary training loop of plain PyTorch: what a user has without pipelines."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from drlpp.capturing.loss_capture import loss_of_outputs
from drlpp.models.task import Task
from drlpp.runtime.device.devices import Accelerator, to_device
from drlpp.runtime.device.emulation import EmulatedAccelerator
from drlpp.runtime.stage.passes.precision import passes_in
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.schedule.method import Method
from drlpp.specs.batches import Batch, call
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.specs.parameter_groups import divided, settled


class PlainLoop:
    """Trains a module as a user would: forward, backward and, when it is due, an update.

    Args:
        task: the module, which is moved to the device, and the loss.
        method: precision, clipping and accumulation are taken from it.
        optimizer: updates the weights.
        accelerator: that computes.
        speed: below 1 it rests after every pass, as workers do that emulate accelerators.
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        optimizer: OptimizerSpec,
        accelerator: Accelerator,
        speed: float = 1.0,
    ) -> None:
        self.device = accelerator.device
        self.module = task.module.to(self.device)
        self._loss = task.loss or loss_of_outputs
        self._method = method
        self._weights = [weight for weight in self.module.parameters() if weight.requires_grad]
        self.optimizers = _optimizers(self.module, optimizer)
        self._emulated = EmulatedAccelerator(speed)
        self._collected = 0

    def step(self, inputs: Batch, targets: Batch, *, last: bool = False) -> Tensor:
        """Train on one minibatch; return its loss.

        Args:
            inputs, targets: of the minibatch.
            last: of its epoch: an update is made of what is collected, however few.
        """
        self._emulated.begin()
        inputs, targets = to_device((inputs, targets), self.device)
        with passes_in(self._method.precision, self.device):
            loss: Tensor = self._loss(call(self.module, inputs), targets)
        self._emulated.rest()
        self._emulated.begin()
        # The gradients of an update are the mean over its minibatches.
        factor = self._method.applied_loss_scale / self._method.accumulate
        scaled = loss if factor == 1 else loss * factor
        scaled.backward()
        self._emulated.rest()
        self._collected += 1
        if last or self._collected == self._method.accumulate:
            self._emulated.begin()
            self._update()
            self._emulated.rest()
        return loss.detach()

    def _update(self) -> None:
        method = self._method
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


def _optimizers(module: nn.Module, spec: OptimizerSpec) -> list[Optimizer]:
    """Return an optimizer for each group of a module's parameters."""
    names: dict[Tensor, str] = {}
    aliases: dict[str, str] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        if weight.requires_grad and names.setdefault(weight, name) != name:
            aliases[name] = names[weight]
    weights = {name: weight for weight, name in names.items()}
    return [
        build_optimizer(group.optimizer, [weights[name] for name in group.names])
        for group in divided(settled(spec, weights, aliases), weights)
    ]
