"""Where the inputs and targets of a minibatch come from, the same on every worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from drlpp.runtime.device.devices import CPU, to_device, to_device_async
from drlpp.schedule.actions import MicrobatchId

if TYPE_CHECKING:
    from drlpp.specs.batches import Batch


class MinibatchSource(Protocol):
    """Gives a stage its inputs and targets."""

    def input(self, index: int, part: MicrobatchId) -> Tensor:
        """Return one of the model's inputs for (minibatch, microbatch)."""

    def targets(self, part: MicrobatchId) -> tuple[Tensor, ...]:
        """Return the targets for (minibatch, microbatch), one or several."""

    def wait_for(self, minibatch: int) -> None:
        """Return when the minibatch is there."""

    def passed(self, through: int) -> None:
        """Note that the minibatches before number ``through`` are not needed any more."""


@dataclass(frozen=True)
class Minibatches:
    """Samples in memory, taken in a given order.

    Every worker reads the samples that its stage needs by itself, so inputs never travel through
    the pipeline. Minibatch b of a run is ``order[b]``; after the last one the first follows.

    Attributes:
        samples: inputs of the model, each tensor with the samples as first dimension.
        labels: targets, samples first.
        order: for every minibatch the indices of its samples, (minibatches, batch size); None to
            give all samples every time, uncopied.
        microbatches: parts of a minibatch along its first dimension.
        device: that a minibatch is wanted on.
    """

    samples: Batch
    labels: Batch
    order: Tensor | None = None
    microbatches: int = 1
    device: torch.device = CPU

    def on(self, device: torch.device) -> Minibatches:
        """Return it on a device: all samples now if every minibatch has all, else as they come."""
        if self.order is not None:
            return replace(self, device=device)
        samples, labels = to_device((self.samples, self.labels), device)
        return replace(self, samples=samples, labels=labels, device=device)

    def inputs(self, part: MicrobatchId) -> tuple[Tensor, ...]:
        """Return the model's inputs for (minibatch, microbatch)."""
        return tuple(self._take(tensor, part) for tensor in pytree.tree_leaves(self.samples))

    def input(self, index: int, part: MicrobatchId) -> Tensor:
        """Return one of the model's inputs for (minibatch, microbatch)."""
        return self._take(pytree.tree_leaves(self.samples)[index], part)

    def targets(self, part: MicrobatchId) -> tuple[Tensor, ...]:
        """Return the targets for (minibatch, microbatch), one or several."""
        return tuple(self._take(tensor, part) for tensor in pytree.tree_leaves(self.labels))

    def wait_for(self, minibatch: int) -> None:
        """Return at once: all minibatches are there."""

    def passed(self, through: int) -> None:
        """Do nothing: all minibatches are kept."""

    def _take(self, tensor: Tensor, part: MicrobatchId) -> Tensor:
        minibatch, microbatch = part
        if self.order is not None:
            tensor = tensor[self.order[minibatch % len(self.order)]]
        if self.microbatches > 1 and tensor.numel():
            tensor = tensor.chunk(self.microbatches)[microbatch]
        return to_device_async(tensor, self.device)
