"""Where a stage's inputs and targets come from: samples in memory, or chunks during a run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from drlpp.runtime.device.devices import CPU, to_device, to_device_async
from drlpp.runtime.ipc.protocol import Reading, Stream
from drlpp.runtime.ipc.tensor_file import read_checkpoint, write_tree
from drlpp.schedule.actions import MicrobatchId

if TYPE_CHECKING:
    from drlpp.specs.batches import Batch
    from drlpp.specs.data import Samples

_POLL_SECONDS = 0.002

_Minibatch = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""Its inputs and its targets."""


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

    def _tensors(self, part: MicrobatchId) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return pytree.tree_leaves(self.samples), pytree.tree_leaves(self.labels)

    def _take(self, tensor: Tensor, part: MicrobatchId) -> Tensor:
        if self.order is not None:
            tensor = tensor[self.order[part[0] % len(self.order)]]
        return super()._take(tensor, part)


def write_chunk(path: Path, minibatches: Sequence[Samples]) -> None:
    """Write minibatches so that ``path`` never holds half of them.

    Raises:
        StorageFailure: the disk is full or cannot be written.
    """
    temporary = path.with_name(f".{path.name}")
    tensors = [tuple(map(pytree.tree_leaves, samples)) for samples in minibatches]
    write_tree(temporary, tensors)
    temporary.replace(path)


class StreamedMinibatches(MinibatchSource):
    """What a worker reads of a stream: chunk after chunk, each as long as any part needs it."""

    def __init__(
        self,
        stream: Stream,
        folder: Path,
        microbatches: int,
        device: torch.device,
        tell: Callable[[Reading], None],
    ) -> None:
        self.stream = stream
        self._folder = folder
        self.microbatches = microbatches
        self.device = device
        self._tell = tell
        self._chunks: dict[int, list[_Minibatch]] = {}
        self._oldest_needed = 0

    def wait_for(self, minibatch: int) -> None:
        """Return when the minibatch is there."""
        chunk, _ = self.stream.place(minibatch)
        if chunk in self._chunks:
            return
        self._chunks = {c: known for c, known in self._chunks.items() if c >= self._oldest_needed}
        self._tell(Reading(wanted=chunk, oldest_needed=self._oldest_needed))
        path = self._folder / self.stream.file_of(chunk)
        while not path.exists():
            time.sleep(_POLL_SECONDS)
        self._chunks[chunk] = read_checkpoint(path)

    def passed(self, through: int) -> None:
        """Note that the minibatches before number ``through`` are not needed any more."""
        self._oldest_needed = max(self._oldest_needed, self.stream.place(through)[0])

    def _tensors(self, part: MicrobatchId) -> _Minibatch:
        self.wait_for(part[0])
        chunk, index = self.stream.place(part[0])
        return self._chunks[chunk][index]
