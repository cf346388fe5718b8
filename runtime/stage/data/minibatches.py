"""Where the inputs and targets of a minibatch come from, the same on every worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from drlpp.runtime.device.devices import CPU, to_device, to_device_async
from drlpp.schedule.actions import MicrobatchId

if TYPE_CHECKING:
    from drlpp.specs.batches import Batch


class MinibatchSource(ABC):
    """Gives a stage its inputs and targets.

    Attributes:
        microbatches: parts of a minibatch along its first dimension.
        device: that a minibatch is wanted on.
    """

    microbatches: int
    device: torch.device

    def input(self, index: int, part: MicrobatchId) -> Tensor:
        """Return one of the model's inputs for (minibatch, microbatch)."""
        return self._take(self._tensors(part)[0][index], part)

    def targets(self, part: MicrobatchId) -> tuple[Tensor, ...]:
        """Return the targets for (minibatch, microbatch), one or several."""
        return tuple(self._take(tensor, part) for tensor in self._tensors(part)[1])

    def wait_for(self, minibatch: int) -> None:
        """Return when the minibatch is there: at once, if all are."""

    def passed(self, through: int) -> None:
        """Note that the minibatches before number ``through`` are not needed any more."""

    @abstractmethod
    def _tensors(self, part: MicrobatchId) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return inputs and targets that have the samples of a part, or more."""

    def _take(self, tensor: Tensor, part: MicrobatchId) -> Tensor:
        if self.microbatches > 1 and tensor.numel():
            tensor = tensor.chunk(self.microbatches)[part[1]]
        return to_device_async(tensor, self.device)


@dataclass(frozen=True)
class Minibatches(MinibatchSource):
    """Samples in memory, taken in a given order.

    Every worker reads the samples that its stage needs by itself, so inputs never travel through
    the pipeline. Minibatch b of a run is ``order[b]``; after the last one the first follows.

    Attributes:
        samples: inputs of the model, each tensor with the samples as first dimension.
        labels: targets, samples first.
        order: for every minibatch the indices of its samples, (minibatches, batch size); None to
            give all samples every time, uncopied.
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
        return tuple(self._take(tensor, part) for tensor in self._tensors(part)[0])

    def _tensors(self, part: MicrobatchId) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return pytree.tree_leaves(self.samples), pytree.tree_leaves(self.labels)

    def _take(self, tensor: Tensor, part: MicrobatchId) -> Tensor:
        if self.order is not None:
            tensor = tensor[self.order[part[0] % len(self.order)]]
        return super()._take(tensor, part)
