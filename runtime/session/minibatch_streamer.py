"""The controller's side of a stream: chunks are written a few ahead of who reads them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drlpp.errors import DataError
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.runtime.deploying.deployment import RunOptions
from drlpp.runtime.ipc.protocol import Reading, Stream
from drlpp.runtime.loading.loaders import suspended_sigchld_handler
from drlpp.runtime.stage.minibatches import write_chunk
from drlpp.specs.batches import tensors_in
from drlpp.specs.data import Samples

if TYPE_CHECKING:
    from drlpp.runtime.session.worker_group import WorkerGroup

_AHEAD = 4
_CHUNK_BYTES = 1 << 20
_MOST_MINIBATCHES = 16


def chunk_minibatches(bytes_: int) -> int:
    """Return how many minibatches of ``bytes_`` each a chunk has at most, a power of two.

    Large ones travel alone.
    """
    fitting = min(_MOST_MINIBATCHES, _CHUNK_BYTES // max(bytes_, 1))
    return 1 << max(fitting, 1).bit_length() - 1


@dataclass
class MinibatchStreamer:
    """Writes the minibatches of a run into files, a few chunks ahead, and removes them again.

    The controller calls :meth:`advance` while it waits for answers, so that whatever gives
    the minibatches runs in the controller's own thread, and what that raises ends the run.

    Attributes:
        group: that has the session's files.
        stream: as the workers know it.
        minibatches: the source.
        count: how many of them make the run.
        needed: the first chunk that every worker of the run still needs.
    """

    group: WorkerGroup
    stream: Stream
    minibatches: Generator[Samples]
    count: int
    needed: dict[int, int]
    _pending: list[Samples] = field(default_factory=list)
    _read: int = 0
    _written: int = 0
    _removed: int = 0
    _wanted: int = 0

    def advance(self) -> bool:
        """Get one more minibatch, unless enough are ahead; return whether it did.

        Raises:
            DataError: if there is none left.
        """
        if self._read == self.count or self._written > self._wanted + _AHEAD:
            return False
        minibatch = next(self.minibatches, None)
        if minibatch is None:
            raise DataError(
                f"the data ended after {self._read} minibatches of a run of {self.count}"
            )
        self._pending.append(minibatch)
        self._read += 1
        if self._read == self.count or self.stream.place(self._read)[0] > self._written:
            file = self.stream.file_of(self._written)
            self.group.publish(file, lambda path: write_chunk(path, self._pending))
            self._pending = []
            self._written += 1
        return True

    def on_request(self, worker: int, reading: Reading) -> None:
        """Note what a worker wants to read; remove what no worker needs any more."""
        self._wanted = max(self._wanted, reading.wanted)
        self.needed[worker] = max(self.needed[worker], reading.oldest_needed)
        self._remove_before(min(self.needed.values()))

    def close(self) -> None:
        """Remove what is left, and let go of the source."""
        self._remove_before(self._written)
        self.minibatches.close()

    def _remove_before(self, chunk: int) -> None:
        for number in range(self._removed, min(chunk, self._written)):
            self.group.remove_file(self.stream.file_of(number))
            self._removed = number + 1


@contextmanager
def feeding(
    group: WorkerGroup, plan: ExecutionPlan, options: RunOptions, minibatches: int
) -> Iterator[tuple[MinibatchStreamer | None, Stream | None]]:
    """Provide feed and stream of a run, if it loads minibatches."""
    if options.loaded is None:
        yield None, None
        return
    task = group.captured.task
    bytes_ = sum(tensor.nbytes for tensor in tensors_in((task.inputs, task.targets)))
    stream = Stream(group.new_name("stream"), chunk_minibatches(bytes_))
    needed = dict.fromkeys(plan.pipeline.workers, 0)
    feed = MinibatchStreamer(group, stream, options.loaded, minibatches, needed)
    with suspended_sigchld_handler(), closing(feed):
        yield feed, stream
