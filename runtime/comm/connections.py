"""The connections of a worker to others: process groups, those of its placement, passing ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.capturing.graph import TensorSpec
from drlpp.runtime.comm.transport import DirectedLinks, Links, TaggedLinks
from drlpp.runtime.device.devices import Backend
from drlpp.runtime.ipc.protocol import Deploy, ProfileOperators, Route, TimeLink, Transport

_MOST_BLOCKS = 4
"""Multiprocessors of a GPU that an operation of NCCL may occupy."""

_ONE = TensorSpec(shape=(1,), dtype="float32", bytes_=4)

# With a name of its source file before it, and advice behind.
_OF_GLOO = re.compile(r"gloo/transport/\S+\] (.*?)(?:\. This is typically|$)")
# What torch says of NCCL's codes; system errors are of sockets, and of much else on this host.
_OF_NCCL = re.compile(
    r"(ncclRemoteError: .*|NCCL communicator was aborted.*)"
    r"|ncclSystemError: .*Last error: (.*(?:remote peer|[Cc]onnection re).*)"
)


@dataclass(frozen=True)
class Member:
    """A worker as a member of groups.

    A group is never repaired: a trial gets a new one, so that nothing of an abandoned trial can
    arrive in the next. Whoever builds one waits for all of its members.

    Attributes:
        store: in which the members meet, under the name of the group, which is never used twice.
        worker: its number.
        address: of its host. Gloo listens there, and nowhere else.
        device: that it computes on.
        timeout_seconds: of every operation.
    """

    store: dist.Store
    worker: int
    address: str
    device: torch.device
    timeout_seconds: float

    def group(self, name: str, workers: Sequence[int], backend: Backend) -> dist.ProcessGroup:
        """Build a group of workers, in the order of their ranks."""
        prefixed = dist.PrefixStore(name, self.store)
        rank, size = workers.index(self.worker), len(workers)
        timeout = timedelta(seconds=self.timeout_seconds)
        if backend == "nccl":
            of_nccl = dist.ProcessGroupNCCL.Options()
            of_nccl._timeout = timeout
            of_nccl.config.max_ctas = _MOST_BLOCKS
            return dist.ProcessGroupNCCL(prefixed, rank, size, of_nccl)  # type: ignore[return-value]
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self.address)]
        options._timeout = timeout
        return dist.ProcessGroupGloo(prefixed, rank, size, options)  # type: ignore[return-value]

    def links(
        self,
        transport: Transport,
        name: str,
        everyone: dist.ProcessGroup,
        workers: Sequence[int],
        routes: Iterable[Route],
    ) -> Links:
        """Build the ways of this worker; all workers of the placement have to call this.

        Args:
            transport: how.
            name: of the groups that have to be made.
            everyone: a group of all workers, of Gloo.
            workers: in the order of their ranks.
            routes: on which anything will be sent, between any of the workers.
        """
        if not transport.directed:
            return TaggedLinks(everyone, workers, self.device, staged=transport.staged)
        groups: dict[Route, dist.ProcessGroup] = {}
        links = DirectedLinks(groups, self.worker, self.device)
        for route in sorted(routes):
            if self.worker in route:
                sender, receiver = route
                groups[route] = self.group(
                    f"{name}/{sender}-to-{receiver}", route, transport.backend
                )
                # The first message connects. Whoever waits here waits for a worker that is at an
                # earlier way, so the earliest of all proceeds.
                if self.worker == sender:
                    links.send([torch.ones(1, device=self.device)], receiver).wait()
                else:
                    _settle(links.receive([_ONE], sender).wait()[0])
        return links

    def sum_group(
        self, transport: Transport, name: str, replicas: Sequence[int]
    ) -> dist.ProcessGroup:
        """Build the group in which replicas of a stage sum gradients; connect it, as links are."""
        group = self.group(name, replicas, transport.backend)
        if transport.directed:
            one = torch.ones(1, device=self.device)
            group.allreduce([one]).wait()
            _settle(one)
        return group

    @contextmanager
    def links_of_two(self, command: TimeLink, name: str) -> Iterator[Links]:
        """Connect the two workers of a link for a while."""
        ends = command.sender, command.receiver
        everyone = self.group(name, ends, "gloo")
        links = self.links(command.transport, name, everyone, ends, (ends, ends[::-1]))
        try:
            yield links
        finally:
            links.close()

    @contextmanager
    def replicas_of_profile(self, command: ProfileOperators) -> Iterator[dist.ProcessGroup | None]:
        """Connect the workers that profile together for a while; None if there is one alone."""
        if len(command.workers) == 1:
            yield None
            return
        group = self.sum_group(command.transport, command.name, command.workers)
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
    def build(cls, command: Deploy, stage: int, member: Member) -> Self:
        """Connect a worker that holds ``stage``; wait for the others to do the same."""
        name, workers, transport = command.name, command.workers, command.transport
        everyone = member.group(f"{name}/all", workers, "gloo")
        links = member.links(transport, name, everyone, workers, command.routes)
        replicas = None
        if len(command.replicas) > 1:
            replicas = member.sum_group(transport, f"{name}/stage-{stage}", command.replicas)
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


def _settle(tensor: Tensor) -> None:
    """Wait until the device has the tensor."""
    assert tensor.item() > 0


def broken_connection(error: BaseException) -> str | None:
    """Return what Gloo or NCCL say of a broken connection, or one that timed out; else None."""
    text = " ".join(str(error).split())
    if found := _OF_GLOO.search(text):
        return found[1]
    found = _OF_NCCL.search(text)
    return found and (found[1] or found[2])
