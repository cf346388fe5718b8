"""The ways that tensors take from worker to worker: which library carries them, and how.

Gloo knows the memory of the host only, and tells messages apart by tags. One group of all workers
carries everything. What lies on a GPU is copied to pinned memory before it is sent, and from there
to the other GPU.

NCCL copies from GPU to GPU. It knows no tags, and does the work of one group in one stream, one
operation after another, where an operation waits for its counterpart on the other side. In a group
of two, a receive that is posted early would hold up the send behind it, of which the other side's
receive is the counterpart: a deadlock. So each *direction* of a pair has a group of its own, in
which one side sends and the other receives, in the order of the schedule on both::

    worker 0   F0  F1  ..  B0          groups   0→1   send F0, send F1, ...
    worker 1       F0  B0  F1                   1→0   send B0, ...

Then nothing waits for more than the schedule says. An operation starts when the worker's own stream
has come to where it was given, and the one before it in its group has ended. Take the order in
which one process can perform the schedule (``drlpp.schedule.schedule.in_order``). A message stands
there where its send and the posting of its receive are both past, which is never later than the
action that waits for it; the one before it in its group stands earlier. The sum of a bucket, in the
group of the stage's replicas and no other, stands where the last replica starts it, before any
replica waits for it. A sender waits for a message only after enough later ones that its receiver
must have used it. So every operation waits for earlier ones alone, and the first that has not ended
can always proceed. Norms are summed by Gloo, from the host, at their place in the order.

What is left are the GPU's resources. An operation of NCCL that waits for its counterpart occupies
multiprocessors, at most one operation for each group, so groups are set to use few. Whatever makes
the whole GPU wait in the meantime waits for the other side too: kernels are therefore loaded before
anything is sent (``drlpp.runtime.device.devices``), and torch's allocator asks for memory in the
first minibatches only. And NCCL connects a group at its first operation, for which both sides wait:
that is done when a placement is deployed, one group after another in an order that all workers
share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.capturing.graph import TensorSpec
from drlpp.runtime.comm.pacing import Pace, wait_until
from drlpp.runtime.device.devices import has_streams
from drlpp.runtime.ipc.protocol import Route


class Staging:
    """Copies tensors between a device and the host's memory, pinned where that is faster."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = has_streams(device)

    def to_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return copies in the host's memory; wait for the copies, and so for what they copy."""
        copies = [self.buffer(tensor.shape, tensor.dtype) for tensor in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=self._pinned)
        if self._pinned:
            torch.get_device_module(self._device).current_stream(self._device).synchronize()
        return copies

    def buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return memory of the host to receive in."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=self._pinned)

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return copies on the device, which may still be copying them when this returns."""
        # torch's allocator of pinned memory keeps a buffer until copies from it are done.
        return [
            torch.empty_like(tensor, device=self._device, pin_memory=False).copy_(
                tensor, non_blocking=self._pinned
            )
            for tensor in tensors
        ]


_MOMENT = TensorSpec(shape=(1,), dtype="float64", bytes_=8)


@dataclass(frozen=True)
class Transfer:
    """Tensors on their way, which on emulated links end it at the moment ``until``."""

    tensors: Sequence[Tensor]
    works: Sequence[dist.Work]
    staging: Staging | None = None
    until: float | Callable[[], float] | None = None

    def wait(self) -> list[Tensor]:
        """Wait until the tensors have arrived, or, with NCCL, let the device wait; return them."""
        for work in self.works:
            work.wait()
        found = self.staging.to_device(self.tensors) if self.staging else list(self.tensors)
        if self.until is not None:
            wait_until(self.until if isinstance(self.until, float) else self.until())
        return found


class Links:
    """The ways from and to one worker; what is sent on a way arrives in the order of sending.

    Both ends agree beforehand on how many tensors come, of which shapes and types. On each way they
    count tags.

    Args:
        worker: its number.
        group: that carries what has no group of its own way.
        workers: of that group, in the order of their ranks.
        device: that tensors are on, and are to be on.
        staged: whether groups of torch need them in the host's memory.

    Attributes:
        directed: groups of two for a way each, in which the sender has rank 0; they need no tags.
        pace: of emulated links, on which a message says when it can have arrived.
    """

    def __init__(
        self,
        worker: int,
        group: dist.ProcessGroup,
        workers: Sequence[int],
        device: torch.device,
        *,
        staged: bool = False,
    ) -> None:
        self.device = device
        self.directed: dict[Route, dist.ProcessGroup] = {}
        self.pace: Pace | None = None
        self._worker, self._group, self._workers = worker, group, workers
        self._tags: Counter[Route] = Counter()
        self._staging = Staging(device) if staged else None

    def send(self, tensors: Sequence[Tensor], receiver: int) -> Transfer:
        """Start sending; the transfer has to be kept until it was waited for.

        Where they are staged, the caller's tensors may change meanwhile.
        """
        kept, left = [tensor.detach().contiguous() for tensor in tensors], None
        if self.pace:
            left, arrival = self.pace.send(sum(tensor.nbytes for tensor in kept), receiver)
            kept.insert(0, torch.tensor([arrival], dtype=torch.float64, device=self.device))
        if self._staging:
            kept = self._staging.to_host(kept)
        works = [self._start_send(tensor, receiver) for tensor in kept]
        return Transfer(kept[1:] if self.pace else kept, works, until=left)

    def receive(self, specs: Sequence[TensorSpec], sender: int) -> Transfer:
        """Start receiving, in memory that is made for it."""
        buffers, pace = [], self.pace
        for spec in [_MOMENT, *specs] if pace else specs:
            dtype = getattr(torch, spec.dtype)
            if self._staging:
                buffers.append(self._staging.buffer(spec.shape, dtype))
            else:
                buffers.append(torch.empty(spec.shape, dtype=dtype, device=self.device))
        works = [self._start_receive(buffer, sender) for buffer in buffers]
        if not pace:
            return Transfer(buffers, works, self._staging)
        moment, *tensors = buffers
        bytes_ = sum(tensor.nbytes for tensor in tensors)
        return Transfer(
            tensors, works, self._staging, lambda: pace.receive(bytes_, sender, float(moment))
        )

    def close(self) -> None:
        """End groups of ways without asking the other sides, which may have ended theirs."""
        for group in self.directed.values():
            group.abort()

    def _start_send(self, tensor: Tensor, receiver: int) -> dist.Work:
        group, rank, tag = self._way((self._worker, receiver), receiver)
        return group.send([self._carried(tensor)], rank, tag)

    def _start_receive(self, tensor: Tensor, sender: int) -> dist.Work:
        group, rank, tag = self._way((sender, self._worker), sender)
        return group.recv([self._carried(tensor)], rank, tag)

    def _way(self, route: Route, other: int) -> tuple[dist.ProcessGroup, int, int]:
        """Return what carries the next tensor of a way, the other side's rank, and the tag."""
        self._tags[route] += 1
        if (group := self.directed.get(route)) is not None:
            return group, route.index(other), 0
        return self._group, self._workers.index(other), self._tags[route]

    def _carried(self, tensor: Tensor) -> Tensor:
        # NCCL has no complex numbers.
        return torch.view_as_real(tensor) if self.directed and tensor.is_complex() else tensor
