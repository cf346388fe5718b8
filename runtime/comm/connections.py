"""The connections of a worker to others: those of its placement, and passing ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.runtime.comm.mailbox import build_group
from drlpp.runtime.comm.transport import (
    BuildGroup,
    Links,
    build_links,
    build_nccl_group,
    build_sum_group,
)
from drlpp.runtime.ipc.protocol import Backend, Deploy, ProfileOperators, TimeLink


def group_builder(
    store: dist.Store, worker: int, address: str, timeout_seconds: float
) -> BuildGroup:
    """Return what makes ``worker``, at ``address``, a member of a group that meets in ``store``."""

    def build(name: str, workers: Sequence[int], backend: Backend) -> dist.ProcessGroup:
        if backend == "nccl":
            return build_nccl_group(store, name, workers, worker, timeout_seconds)
        return build_group(store, name, workers, worker, address, timeout_seconds)

    return build


@contextmanager
def links_of_two(
    command: TimeLink, name: str, worker: int, device: torch.device, build: BuildGroup
) -> Iterator[Links]:
    """Connect the two workers of a link for a while."""
    ends = (command.sender, command.receiver)
    everyone = build(name, ends, "gloo")
    ways = (ends, ends[::-1])
    links = build_links(command.transport, name, everyone, ends, ways, worker, device, build)
    try:
        yield links
    finally:
        links.close()


@contextmanager
def replicas_of_profile(
    command: ProfileOperators, device: torch.device, build: BuildGroup
) -> Iterator[dist.ProcessGroup | None]:
    """Connect the workers that profile together for a while; None if there is one alone."""
    if len(command.workers) == 1:
        yield None
        return
    group = build_sum_group(command.transport, command.name, command.workers, device, build)
    try:
        yield group
    finally:
        group.abort()


@dataclass(frozen=True)
class Connections:
    """The groups of one deployment.

    Attributes:
        everyone: all workers of the placement, for numbers of the host; always of Gloo.
        links: the ways that messages take.
        replicas: of this worker's stage, None without replication.
    """

    everyone: dist.ProcessGroup
    links: Links
    replicas: dist.ProcessGroup | None

    @classmethod
    def build(
        cls, command: Deploy, stage: int, worker: int, device: torch.device, build: BuildGroup
    ) -> Self:
        """Connect ``worker``, which holds ``stage``; wait for the others to do the same."""
        everyone = build(f"{command.name}/all", command.workers, "gloo")
        links = build_links(
            command.transport,
            command.name,
            everyone,
            command.workers,
            command.routes,
            worker,
            device,
            build,
        )
        replicas = None
        if len(command.replicas) > 1:
            name = f"{command.name}/stage-{stage}"
            replicas = build_sum_group(command.transport, name, command.replicas, device, build)
        return cls(everyone, links, replicas)

    def start_sum(self, tensor: Tensor) -> dist.Work:
        """Start to sum a tensor over the replicas, in place."""
        assert self.replicas is not None
        return self.replicas.allreduce([tensor])

    def share_buffers(self, buffers: Iterable[Tensor]) -> None:
        """Give all replicas the running statistics of the first, as data parallelism does."""
        if self.replicas is not None:
            for buffer in buffers:
                # As bytes, since Gloo does not know all types.
                bytes_ = buffer.reshape(-1).view(torch.uint8)
                self.replicas.broadcast([bytes_]).wait()
                buffer.copy_(bytes_.view(buffer.dtype).view(buffer.shape))

    def close(self) -> None:
        """Close what would not end by itself."""
        self.links.close()
        if self.replicas is not None:
            self.replicas.abort()
