"""Weight policies: which weights a forward and a backward of a stage use.

Every stage holds leaf tensors, which its optimizer updates. A policy lends weights to the forward
passes, keeps what their backward passes need, and performs the updates. What autograd saved in a
forward refers to the storage of the lent tensors, so a policy whose backward uses newer weights
writes them *in place*, behind the back of autograd's version counters: replacing a tensor's
storage would be seen by the backward of convolutions but not by that of linear layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter
from torch.optim import Optimizer

from drlpp.runtime.minibatches import Part
from drlpp.runtime.prediction import predict_weights_
from drlpp.training_options import PolicyName


class WeightPolicy(ABC):
    """The weights of one stage on one worker.

    Args:
        weights: leaf tensors, the parameters of ``optimizer``.
        optimizer: updates them from their ``grad``.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        self.weights = list(weights)
        self.optimizer = optimizer

    @contextmanager
    def forward_weights(self, part: Part, difference: int) -> Iterator[list[Tensor]]:
        """Lend the weights for the forward of ``part`` (minibatch, microbatch).

        Args:
            part: what is processed.
            difference: s, the number of updates before its backward, as the schedule counts them.
        """
        yield self.weights

    def backward_weights(self, part: Part) -> list[Tensor]:
        """The leaf tensors with respect to which the backward of ``part`` differentiates."""
        return self.weights

    @abstractmethod
    def update(self) -> None:
        """Perform one update from the gradients in ``weights``."""


class Sync(WeightPolicy):
    """Forward and backward use the same W_t, since no update comes between them (s = 0).

    If one did, autograd would refuse the backward.
    """

    def update(self) -> None:
        """One step of the optimizer."""
        self.optimizer.step()


class Vanilla(WeightPolicy):
    """Forward uses W_t, backward whatever the weights are by then, W_{t+s} (pipeoptim §V-E)."""

    def update(self) -> None:
        """One step, in place, unseen by the backwards that are still to come."""
        with _unsafe_preserve_version_counter(tuple(self.weights)):
            self.optimizer.step()


class PipeOptim(Vanilla):
    """Forward uses the prediction Ŵ_{t+s}, backward W_{t+s} as it is then (pipeoptim §IV).

    Algorithm 1, lines 5 to 10: cache the weights, predict in place, forward, recover. A forward
    whose backward sees the same weights (s = 0, as on the last stage) needs no prediction. At
    most two versions of the weights are kept.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        super().__init__(weights, optimizer)
        self._cache: list[Tensor] = []

    @contextmanager
    def forward_weights(self, part: Part, difference: int) -> Iterator[list[Tensor]]:
        """Lend the predicted weights."""
        if difference == 0 or not self.weights:
            yield self.weights
            return
        if not self._cache:
            self._cache = [torch.empty_like(weight) for weight in self.weights]
        with torch.no_grad(), _unsafe_preserve_version_counter(tuple(self.weights)):
            torch._foreach_copy_(self._cache, self.weights)
            rate_sum = float(self.optimizer.param_groups[0]["lr"]) * difference
            predict_weights_(self.weights, self.optimizer, rate_sum)
        try:
            yield self.weights
        finally:
            with torch.no_grad(), _unsafe_preserve_version_counter(tuple(self.weights)):
                torch._foreach_copy_(self.weights, self._cache)


class Stash(WeightPolicy):
    """Weight stashing: the backward uses the very weights of the forward (pipedream §3.3).

    Every version that a minibatch in flight has seen is kept as leaf tensors of its own, and the
    gradients with respect to them are applied to the newest weights. Versions that are no longer
    needed are used again as storage for new ones.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        super().__init__(weights, optimizer)
        self._newest: list[Tensor] | None = None
        self._stashed: dict[Part, list[Tensor]] = {}
        self._spare: list[list[Tensor]] = []

    @contextmanager
    def forward_weights(self, part: Part, difference: int) -> Iterator[list[Tensor]]:
        """Lend the newest weights and remember them for the backward."""
        if self._newest is None:
            self._newest = self._spare.pop() if self._spare else self._allocate()
            with torch.no_grad():
                torch._foreach_copy_(self._newest, self.weights)
        self._stashed[part] = self._newest
        yield self._newest

    def _allocate(self) -> list[Tensor]:
        return [torch.empty_like(weight).requires_grad_() for weight in self.weights]

    def backward_weights(self, part: Part) -> list[Tensor]:
        """The weights of the forward of ``part``, which are given up with this call."""
        version = self._stashed.pop(part)
        if version is not self._newest and not self._is_stashed(version):
            self._spare.append(version)
        return version

    def _is_stashed(self, version: list[Tensor]) -> bool:
        return any(version is other for other in self._stashed.values())

    def update(self) -> None:
        """One step on the newest weights; older versions stay as they are while in flight."""
        self.optimizer.step()
        if self._newest is not None and not self._is_stashed(self._newest):
            self._spare.append(self._newest)
        self._newest = None


class Weightless(WeightPolicy):
    """A stage that has no parameters, such as a pooling layer on its own."""

    def __init__(self) -> None:
        self.weights = []

    def update(self) -> None:
        """Nothing to update."""


_POLICIES: dict[PolicyName, type[WeightPolicy]] = {
    "sync": Sync,
    "vanilla": Vanilla,
    "stash": Stash,
    "pipeoptim": PipeOptim,
}


def build_policy(
    name: PolicyName, weights: Sequence[Tensor], optimizer: Optimizer | None, *, stale: bool
) -> WeightPolicy:
    """The policy ``name``; for a stage without stale forwards all are the same, :class:`Sync`."""
    if optimizer is None:
        return Weightless()
    return (_POLICIES[name] if stale else Sync)(weights, optimizer)
