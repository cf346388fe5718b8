"""Minibatches that come in chunks during a run: what controller and workers agree on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from drlpp.runtime.ipc.protocol import Reading, Stream
from drlpp.runtime.ipc.tensor_file import in_memory, read_checkpoint, write_tree
from drlpp.runtime.stage.data.minibatches import MinibatchSource
from drlpp.schedule.actions import MicrobatchId

if TYPE_CHECKING:
    from drlpp.specs.data import Samples

_POLL_SECONDS = 0.002

_Minibatch = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""Its inputs and its targets."""


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
    """What a worker reads of a stream: chunk after chunk, each as long as any part needs it.

    Args:
        stream: which.
        folder: of the session, where the chunks appear.
        microbatches: parts of a minibatch along its first dimension.
        device: that minibatches are wanted on.
        tell: the controller, whenever another chunk is wanted.
    """

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
        chunk, _ = self._place(minibatch)
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
        self._oldest_needed = max(self._oldest_needed, self._place(through)[0])

    def _place(self, minibatch: int) -> tuple[int, int]:
        return divmod(minibatch - self.stream.first, self.stream.chunk_minibatches)

    def _tensors(self, part: MicrobatchId) -> _Minibatch:
        self.wait_for(part[0])
        chunk, index = self._place(part[0])
        return self._chunks[chunk][index]

    def _take(self, tensor: Tensor, part: MicrobatchId) -> Tensor:
        return super()._take(in_memory(tensor), part)
