"""The connections of a worker to others: process groups, and the ways that messages take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.capturing.graph import TensorSpec
from drlpp.runtime.comm.pacing import Pace, PacedSum
from drlpp.runtime.comm.transport import Links, Staging
from drlpp.runtime.device.devices import DEVICE_KINDS, Backend
from drlpp.runtime.ipc.protocol import GroupSpec
from drlpp.runtime.ipc.time_limits import TimeLimits

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
        pace: of emulated links; None where these are what they are.
        timeout_seconds: of every operation.
    """

    store: dist.Store
    worker: int
    address: str
    device: torch.device
    pace: Pace | None = None
    timeout_seconds: float = TimeLimits.group_seconds

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
        if backend == "xccl":
            of_xccl = dist.ProcessGroupXCCL.Options()
            of_xccl._timeout = timeout
            return dist.ProcessGroupXCCL(prefixed, rank, size, of_xccl)  # type: ignore[return-value]
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self.address)]
        options._timeout = timeout
        return dist.ProcessGroupGloo(prefixed, rank, size, options)  # type: ignore[return-value]


@dataclass(frozen=True)
class Connections:
    """The groups of some workers: of a deployment, a profile, or the two ends of a link.

    Attributes:
        everyone: all of them, for numbers of the host; always of Gloo.
        links: the ways that messages take.
        replicas: of this worker's stage, which sum gradients; None without replication.
        staging: for sums, where Gloo cannot read the device's tensors; else None.
        paced: what makes a sum of so many bytes that has begun take its time.
    """

    everyone: dist.ProcessGroup
    links: Links
    replicas: dist.ProcessGroup | None
    staging: Staging | None = None
    paced: Callable[[dist.Work, int], dist.Work] | None = None

    @classmethod
    def build(cls, member: Member, group: GroupSpec) -> Self:
        """Connect a worker; wait for the others of the group to do the same."""
        transport, replicas = group.transport, group.replicas
        everyone = member.group(f"{group.name}/all", group.workers, "gloo")
        links = Links(
            member.worker, everyone, group.workers, member.device, staged=transport.staged
        )
        if transport.directed:
            _connect_ways(links, member, group)
        links.pace = member.pace
        summing = None
        if len(replicas) > 1:
            name = f"{group.name}/replicas-{replicas[0]}"
            summing = member.group(name, replicas, transport.backend)
            if transport.directed:
                one = torch.ones(1, device=member.device)
                summing.allreduce([one]).wait()
                _settle(one)
        by_gloo = transport.directed or DEVICE_KINDS[member.device.type].gloo_sums
        staging, paced = None if by_gloo else Staging(member.device), None
        if member.pace is not None and summing is not None:
            others = [worker for worker in replicas if worker != member.worker]
            paced = partial(PacedSum, group=summing, others=others, pace=member.pace)
        return cls(everyone, links, summing, staging, paced)

    def start_sum(self, tensor: Tensor) -> dist.Work:
        """Start to sum a tensor over the replicas, in place."""
        assert self.replicas is not None
        if self.staging:
            work: dist.Work = _StagedSum(self.replicas, tensor, self.staging)
        else:
            work = self.replicas.allreduce([tensor])
        return self.paced(work, tensor.nbytes) if self.paced else work

    def share_buffers(self, buffers: Iterable[Tensor]) -> None:
        """Give all replicas the running statistics of the first, as data parallelism does."""
        if self.replicas is not None:
            for buffer in buffers:
                # As bytes, since Gloo does not know all types.
                bytes_ = buffer.reshape(-1).view(torch.uint8)
                if self.staging:
                    (bytes_,) = self.staging.to_host([bytes_])
                self.replicas.broadcast([bytes_]).wait()
                buffer.copy_(bytes_.view(buffer.dtype).view(buffer.shape))

    def close(self) -> None:
        """Close what would not end by itself."""
        self.links.close()
        if self.replicas is not None:
            self.replicas.abort()


class _StagedSum(dist.Work):
    """A sum over replicas of a copy in the host's memory."""

    def __init__(self, replicas: dist.ProcessGroup, tensor: Tensor, staging: Staging) -> None:
        super().__init__()
        self._tensor = tensor
        self._copies = staging.to_host([tensor])
        self._work = replicas.allreduce(self._copies)

    def wait(self, *limit: timedelta) -> bool:
        """Wait until the sum has taken the tensor's place."""
        done = self._work.wait(*limit)
        self._tensor.copy_(self._copies[0])
        return done


def _connect_ways(links: Links, member: Member, group: GroupSpec) -> None:
    """Build and connect a group for each route from or to a worker.

    The first message connects. Whoever waits for it waits for a worker that is at an earlier route,
    so the earliest of all proceeds.
    """
    for sender, receiver in sorted(group.routes):
        if member.worker in (sender, receiver):
            ends = sender, receiver
            name = f"{group.name}/{sender}-to-{receiver}"
            links.directed[ends] = member.group(name, ends, group.transport.backend)
            if member.worker == sender:
                links.send([torch.ones(1, device=member.device)], receiver).wait()
            else:
                _settle(links.receive([_ONE], sender).wait()[0])


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
