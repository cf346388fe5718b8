"""Copies that workers of one host send to those of another, between two minibatches, by Gloo."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.io.disk_errors import reporting_disk_errors
from drlpp.runtime.ipc.commands import PeerCopy
from drlpp.runtime.ipc.tensor_file import write_tree

_SIZE_TAG, _CONTENT_TAG = 2**30, 2**30 + 1
"""Messages of a pipeline count their tags from 0."""


def exchange_copies(
    copies: Sequence[PeerCopy],
    held: object,
    group: dist.ProcessGroup,
    workers: Sequence[int],
    worker: int,
    folder: Path,
) -> None:
    """Send what this worker holds, and write what others send, as far as ``copies`` say so.

    Nothing of a file is in a process's own memory: it goes from the system's cache to that of the
    other host.

    Args:
        copies: the same on all workers.
        held: a tree of tensors on the host.
        group: of ``workers``, of Gloo, in the order of their ranks.
        workers: of the placement.
        worker: this one.
        folder: of the session on this host.

    Raises:
        StorageFailure: there is no room for it.
    """
    sent = folder / f"sent-{worker}.safetensors"
    kept: list[Tensor] = []
    works: list[dist.Work] = []
    for copy in copies:
        if copy.sender == worker:
            write_tree(sent, held)
            size = sent.stat().st_size
            content = torch.from_file(str(sent), size=size, dtype=torch.uint8)
            kept += [torch.tensor([size]), content]
            receiver = workers.index(copy.receiver)
            works += [
                group.send([tensor], receiver, tag)
                for tensor, tag in zip(kept[-2:], (_SIZE_TAG, _CONTENT_TAG), strict=True)
            ]
    for copy in copies:
        if copy.receiver == worker:
            sender, expected = workers.index(copy.sender), torch.zeros(1, dtype=torch.int64)
            group.recv([expected], sender, _SIZE_TAG).wait()
            room = _room(folder / copy.file, int(expected))
            group.recv([room], sender, _CONTENT_TAG).wait()
    for work in works:
        work.wait()
    sent.unlink(missing_ok=True)


def _room(path: Path, size: int) -> Tensor:
    """Return the bytes of a new file, to be written."""
    # Somebody may still have the old file mapped, which has to stay as it is.
    path.unlink(missing_ok=True)
    with reporting_disk_errors(path), path.open("wb") as file:
        # A mapped file that has no room when it is written ends the process.
        os.posix_fallocate(file.fileno(), 0, size)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
