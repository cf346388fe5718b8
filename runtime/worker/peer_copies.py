"""Copies that workers of one host send to those of another, between two minibatches, by Gloo."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.io.disk_errors import reporting_disk_errors
from drlpp.runtime.ipc.answers import Working
from drlpp.runtime.ipc.commands import PeerCopy

_SIZE_TAG, _CONTENT_TAG = 2**30, 2**30 + 1
"""Messages of a pipeline count their tags from 0; chunks count theirs from the second of these."""

_CHUNK_BYTES = 64 * 2**20
"""Over any network that copies are sent by it arrives before a silence counts as hung."""


def exchange_copies(
    copies: Sequence[PeerCopy],
    own: Path,
    group: dist.ProcessGroup,
    workers: Sequence[int],
    worker: int,
    tell: Callable[[Working], None],
) -> None:
    """Send the file of this worker, and write those of others beside it, as ``copies`` say.

    Nothing of a file is in a process's own memory: it goes from the system's cache to that of the
    other host.

    Args:
        copies: the same on all workers.
        own: the file, in the session's folder on this host.
        group: of ``workers``, of Gloo, in the order of their ranks.
        workers: of the placement.
        worker: this one.
        tell: called with a sign of life after each chunk that has arrived.

    Raises:
        StorageFailure: there is no room for it.
    """
    kept: list[Tensor] = []
    works: list[dist.Work] = []
    for copy in copies:
        if copy.sender == worker:
            size = own.stat().st_size
            content = torch.from_file(str(own), size=size, dtype=torch.uint8)
            sent = [torch.tensor([size]), *content.split(_CHUNK_BYTES)]
            receiver = workers.index(copy.receiver)
            works += [
                group.send([tensor], receiver, tag) for tag, tensor in enumerate(sent, _SIZE_TAG)
            ]
            kept += sent
    for copy in copies:
        if copy.receiver == worker:
            sender, expected = workers.index(copy.sender), torch.zeros(1, dtype=torch.int64)
            group.recv([expected], sender, _SIZE_TAG).wait()
            room = _room(own.parent / copy.file, int(expected))
            for tag, chunk in enumerate(room.split(_CHUNK_BYTES), _CONTENT_TAG):
                group.recv([chunk], sender, tag).wait()
                tell(Working())
    for work in works:
        work.wait()


def _room(path: Path, size: int) -> Tensor:
    """Return the bytes of a new file, to be written."""
    # Somebody may still have the old file mapped, which has to stay as it is.
    path.unlink(missing_ok=True)
    with reporting_disk_errors(path), path.open("wb") as file:
        # A mapped file that has no room when it is written ends the process.
        os.posix_fallocate(file.fileno(), 0, size)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
