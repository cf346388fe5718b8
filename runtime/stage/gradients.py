"""Collecting the gradients of an update: from one backward, or from several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.schedule.actions import BUCKET_BYTES

SumOverReplicas = Callable[[Tensor], dist.Work]
"""Starts to sum a tensor of real numbers over the replicas of a stage, in place."""


class Gradients:
    """What the backward of a stage found for its next update: one gives all; nothing is copied.

    Args:
        weights: the parameters; :meth:`assign_gradients` leaves the gradient of an update in their
            ``grad``.
    """

    bucket_bytes = 0
    """The bytes of the largest bucket that is summed over replicas, 0 without buckets."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._found: list[Tensor | None] = []

    @contextmanager
    def collecting(self, leaves: Sequence[Tensor], *, last: bool) -> Iterator[None]:
        """Enclose a backward with respect to ``leaves``; ``last`` before a sum over replicas."""
        yield

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Take what a backward found, in the order of the weights."""
        self._found = list(gradients)

    def finish_sum(self) -> None:
        """Wait until the gradients are summed over the replicas."""

    def take(self) -> list[Tensor | None]:
        """Return the gradients so far for every weight, in memory of their own, and begin anew."""
        found = self.sums()
        self.discard()
        return found

    def assign_gradients(self, divisor: float) -> None:
        """Give the optimizer the sums over ``divisor`` and begin anew.

        Args:
            divisor: contributions, times the scale of the losses.
        """
        for index, weight in enumerate(self._weights):
            # What is divided needs no room next to its quotient.
            gradient, self._found[index] = self._found[index], None
            if gradient is not None and gradient.stride() != weight.stride():
                # Fused optimizers walk through both as flat memory.
                gradient = torch.empty_like(weight).copy_(gradient)
            if gradient is not None and divisor != 1:
                # Not in place: autograd may give one tensor to two weights, or to a message.
                gradient = gradient / divisor
            weight.grad = gradient
        self.discard()

    def discard(self) -> None:
        """Begin anew without an update."""
        self._found = []

    def sums(self) -> list[Tensor | None]:
        """Return the gradients so far, for every weight."""
        return self._found or [None] * len(self._weights)

    def squared_norm(self) -> float:
        """Return the squared norm of the gradients so far, over all weights of the stage."""
        return squared_norm_of([value for value in self.sums() if value is not None])


@dataclass
class _Bucket:
    """Gradients of some weights in one flat tensor, which travels between replicas as a whole.

    Behind the gradients ``flat`` has a number for each weight, in the order of ``members``: 1 where
    there is a gradient, so that the sum counts the replicas that have one.
    """

    flat: Tensor
    members: list[int]
    waiting: set[int] = field(default_factory=set)
    work: dist.Work | None = None

    @property
    def real(self) -> Tensor:
        return torch.view_as_real(self.flat) if self.flat.is_complex() else self.flat

    @property
    def counts(self) -> Tensor:
        return self.flat[-len(self.members) :]


class SharedGradients(Gradients):
    """Sums over microbatches and replicas, in flat buckets.

    During the last backward before an update every bucket whose gradients are complete begins to
    be summed over the replicas while the backward continues, in a fixed order that all replicas
    share: that of the weights reversed, since a backward comes to the last ones first.

    Gradients are copied, not kept: autograd may return one tensor for two weights, or one that is
    being sent to another stage. A weight that no contribution has a gradient for, on any replica,
    gets none, so that the optimizer leaves it alone.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        sum_over_replicas: SumOverReplicas | None = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        super().__init__(weights)
        self._sum = sum_over_replicas
        self._parts: list[Tensor] = [torch.empty(0)] * len(weights)
        self._buckets: list[_Bucket] = []
        self._lay_out(bucket_bytes)
        self._bucket_of = {i: b for b in self._buckets for i in b.members}
        self.bucket_bytes = max((bucket.flat.nbytes for bucket in self._buckets), default=0)
        self._empty = True
        self._reached = [False] * len(weights)
        self._next = 0
        self._hooked = self._sums = False

    def _lay_out(self, bucket_bytes: int) -> None:
        groups: list[list[int]] = []
        for index in reversed(range(len(self._weights))):
            weight = self._weights[index]
            group = groups[-1] if groups else []
            size = sum(self._weights[i].nbytes for i in group) + weight.nbytes
            if not group or size > bucket_bytes or self._weights[group[0]].dtype != weight.dtype:
                groups.append([index])
            else:
                group.append(index)
        for group in groups:
            sizes = [self._weights[i].numel() for i in group]
            flat = self._weights[group[0]].new_zeros(sum(sizes) + len(group))
            self._buckets.append(_Bucket(flat, group))
            for index, part in zip(group, flat.split([*sizes, len(group)]), strict=False):
                self._parts[index] = part.view(self._weights[index].shape)

    @contextmanager
    def collecting(self, leaves: Sequence[Tensor], *, last: bool) -> Iterator[None]:
        self._hooked, self._sums = True, last and self._sum is not None
        self._next = 0
        for bucket in self._buckets:
            bucket.waiting = set(bucket.members)
        hooks = [
            leaf.register_hook(lambda gradient, index=index: self._arrived(index, gradient))
            for index, leaf in enumerate(leaves)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self._hooked = False

    def _arrived(self, index: int, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            self._add(index, gradient)
        self._bucket_of[index].waiting.discard(index)
        if self._sums:
            self._launch_complete()
        # What autograd returns takes no memory besides the buckets.
        return gradient.new_zeros(()).expand_as(gradient)

    def _launch_complete(self) -> None:
        assert self._sum is not None
        while self._next < len(self._buckets) and not self._buckets[self._next].waiting:
            bucket = self._buckets[self._next]
            reached = [float(self._reached[index]) for index in bucket.members]
            bucket.counts.copy_(torch.tensor(reached))
            bucket.work = self._sum(bucket.real)
            self._next += 1

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add one contribution, or what is left of one that was taken as it was found."""
        if self._hooked:
            for bucket in self._buckets:
                for index in bucket.waiting:
                    self._clear_unreached(index)
                bucket.waiting = set()
            if self._sums:
                self._launch_complete()
        else:
            for index, gradient in enumerate(gradients):
                if gradient is not None:
                    self._add(index, gradient)
                else:
                    self._clear_unreached(index)
        self._empty = False

    def _add(self, index: int, gradient: Tensor) -> None:
        if self._reached[index]:
            self._parts[index].add_(gradient)
        else:
            self._parts[index].copy_(gradient)
            self._reached[index] = True

    def _clear_unreached(self, index: int) -> None:
        if not self._reached[index]:
            self._parts[index].zero_()

    def finish_sum(self) -> None:
        if self._empty:
            # A replica without a minibatch in this round adds zeros.
            for bucket in self._buckets:
                bucket.flat.zero_()
        if not self._sums:
            self._next = 0
            for bucket in self._buckets:
                bucket.waiting = set()
        self._launch_complete()
        for bucket in self._buckets:
            assert bucket.work is not None
            bucket.work.wait()
            bucket.work = None
            for index, count in zip(bucket.members, bucket.counts.real.tolist(), strict=True):
                self._reached[index] = count > 0
        self._sums = False

    def sums(self) -> list[Tensor | None]:
        return [
            part if reached else None
            for part, reached in zip(self._parts, self._reached, strict=True)
        ]

    def take(self) -> list[Tensor | None]:
        found = [None if part is None else part.clone() for part in self.sums()]
        self.discard()
        return found

    def assign_gradients(self, divisor: float) -> None:
        for bucket in self._buckets:
            bucket.flat.div_(divisor)
        for weight, part in zip(self._weights, self.sums(), strict=True):
            weight.grad = part
        self.discard()

    def discard(self) -> None:
        self._empty = True
        self._reached = [False] * len(self._weights)


def squared_norm_of(gradients: Sequence[Tensor]) -> float:
    """Return the squared norm of gradients together."""
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    # Not every device computes in float64.
    return torch.stack(norms).cpu().double().square().sum().item() if norms else 0.0
