"""Minibatches that come while a run goes on, in chunks: what controller and workers agree on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drlpp.data import Samples
from drlpp.runtime.commands import Reading, Stream
from drlpp.schedule import Part

_POLL_SECONDS = 0.002
_TARGETS = "targets"


def write_chunk(path: Path, minibatches: Sequence[Samples]) -> None:
    """Write minibatches of the same shapes so that ``path`` never holds half of them."""
    *inputs, targets = (
        torch.stack(tensors) for tensors in zip(*(_tensors(m) for m in minibatches), strict=True)
    )
    content = {str(index): tensor for index, tensor in enumerate(inputs)} | {_TARGETS: targets}
    temporary = path.with_name(f".{path.name}")
    save_file(content, temporary)
    temporary.replace(path)


def _tensors(minibatch: Samples) -> tuple[Tensor, ...]:
    return (*minibatch.inputs, minibatch.targets)


class StreamedMinibatches:
    """What a worker reads of a stream: chunk after chunk, each as long as any part needs it.

    Args:
        stream: which.
        folder: of the session, where the chunks appear.
        microbatches: parts of a minibatch along its first dimension.
        tell: the controller, whenever another chunk is wanted.
    """

    def __init__(
        self, stream: Stream, folder: Path, microbatches: int, tell: Callable[[Reading], None]
    ) -> None:
        self.stream = stream
        self._folder = folder
        self._microbatches = microbatches
        self._tell = tell
        self._chunks: dict[int, dict[str, Tensor]] = {}
        self._oldest_needed = 0

    def inputs(self, part: Part) -> tuple[Tensor, ...]:
        """The model's inputs for (minibatch, microbatch)."""
        chunk, _ = self._place(part[0])
        self.wait_for(part[0])
        return tuple(self._take(str(i), part) for i in range(len(self._chunks[chunk]) - 1))

    def targets(self, part: Part) -> Tensor:
        """The targets for (minibatch, microbatch)."""
        self.wait_for(part[0])
        return self._take(_TARGETS, part)

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
        self._chunks[chunk] = load_file(path)

    def passed(self, through: int) -> None:
        """The minibatches before number ``through`` are not needed any more."""
        self._oldest_needed = max(self._oldest_needed, self._place(through)[0])

    def _place(self, minibatch: int) -> tuple[int, int]:
        return divmod(minibatch - self.stream.first, self.stream.chunk_minibatches)

    def _take(self, name: str, part: Part) -> Tensor:
        chunk, index = self._place(part[0])
        # A copy of its own begins where a tensor in memory would: kernels may round by alignment.
        tensor = self._chunks[chunk][name][index].clone()
        if self._microbatches == 1 or not tensor.numel():
            return tensor
        return tensor.chunk(self._microbatches)[part[1]]
