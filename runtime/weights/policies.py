"""Weight policies: which weights a forward and a backward of a stage use.

What autograd saved in a forward refers to the storage of the lent tensors, so a policy whose
backward uses newer weights writes them *in place*, behind the back of autograd's version counters:
replacing a tensor's storage would be seen by the backward of convolutions but not by that of linear
layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter
from torch.optim import Optimizer

from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.weight_policies import WeightUse

PolicyState = list[dict[str, Tensor]]
"""What a policy knows about every weight of a stage in addition to its value."""


class WeightPolicy:
    """The weights of one stage on one worker: all passes use the newest, as with ``sync``.

    No update comes between a forward and its backward (s = 0); if one did, autograd would refuse
    the backward.

    Args:
        weights: leaf tensors, the parameters of ``optimizer``.
        optimizer: updates them from their ``grad``.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        self.weights = list(weights)
        self.optimizer = optimizer
        self._rates: Sequence[float] = ()
        self._version = 0

    def begin(self, uses: Mapping[MicrobatchId, WeightUse], rates: Sequence[float]) -> None:
        """Prepare for a run; the weights now are its version 0.

        Args:
            uses: of all parts of the run.
            rates: the learning rate of every update, from that which makes version 1.
        """
        self._rates = rates
        self._version = 0

    @contextmanager
    def lent(self, use: WeightUse, *, backward: bool = False) -> Iterator[list[Tensor]]:
        """Lend the weights of a forward, or the leaves that a backward differentiates by.

        A recomputation uses the same weights as its backward.
        """
        yield self.weights

    def done_with(self, use: WeightUse) -> None:
        """Note that a part has made its backward."""

    def update(self, *, skipped: bool = False) -> None:
        """Perform one update from the gradients in ``weights``.

        One that is ``skipped`` changes neither weights nor optimizer. It counts: the schedule of
        learning rates moves on, and predictions follow the last step that was made.
        """
        if self._rates and not skipped:
            rate = self._rates[min(self._version, len(self._rates) - 1)]
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        self._step(skipped=skipped)
        self._version += 1

    def _step(self, *, skipped: bool) -> None:
        """Come to the next version by a step of the optimizer, or without one."""
        if not skipped:
            self.optimizer.step()

    def rate_sum(self, lead: int) -> float:
        """Return Σ of the rates of the next ``lead`` updates; negative for a negative lead."""
        if not self._rates:
            return lead * float(self.optimizer.param_groups[0]["lr"])
        last = len(self._rates) - 1
        ahead = range(self._version, self._version + abs(lead))
        total = sum(self._rates[min(update, last)] for update in ahead)
        return total if lead >= 0 else -total

    def copies(self) -> list[Tensor]:
        """Return tensors that hold weights, other than the newest."""
        return []

    def state(self) -> PolicyState:
        """Return the part of a checkpoint besides weights and optimizer, for every weight."""
        return [{} for _ in self.weights]

    def load_state(self, state: PolicyState) -> None:
        """Take over what :meth:`state` gave."""


class Vanilla(WeightPolicy):
    """Forward uses W_t, backward whatever the weights are by then, W_{t+s} (pipeoptim §V-E).

    With it and its subclasses a backward may read other weights than its forward.
    """

    def _step(self, *, skipped: bool) -> None:
        """Step in place, unseen by the backwards that are still to come."""
        with _unsafe_preserve_version_counter(tuple(self.weights)):
            super()._step(skipped=skipped)


class Stash(WeightPolicy):
    """Weight stashing: forward and backward use the same version (pipedream §3.3).

    Which one is the schedule's: the newest at the forward (PipeDream), that of the input stage
    (vertical sync), or the one before (PipeDream-2BW). A version is a set of leaf tensors that
    share storage with the newest weights until an update would change what a part still needs;
    then the newest weights move to storage of their own. So only versions in use are held.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        super().__init__(weights, optimizer)
        self._versions: dict[int, list[Tensor]] = {}
        self._pending: Counter[int] = Counter()

    def begin(self, uses: Mapping[MicrobatchId, WeightUse], rates: Sequence[float]) -> None:
        super().begin(uses, rates)
        self._pending = Counter(use.stashed for use in uses.values())
        self._versions = {0: self._leaves()}

    def _leaves(self) -> list[Tensor]:
        # .data has a version counter of its own: autograd must not see the updates of the newest.
        return [weight.data.requires_grad_() for weight in self.weights]

    @contextmanager
    def lent(self, use: WeightUse, *, backward: bool = False) -> Iterator[list[Tensor]]:
        yield self._versions[use.stashed]

    def done_with(self, use: WeightUse) -> None:
        self._pending[use.stashed] -= 1
        if not self._pending[use.stashed] and use.stashed != self._version:
            del self._versions[use.stashed]

    def _step(self, *, skipped: bool) -> None:
        """Step on the newest weights; older versions stay as they are while in use."""
        if self._pending[self._version]:
            for weight in self.weights:
                weight.data = weight.data.clone()
        else:
            del self._versions[self._version]
        super()._step(skipped=skipped)
        self._versions[self._version + 1] = self._leaves()

    def copies(self) -> list[Tensor]:
        return [leaf for leaves in self._versions.values() for leaf in leaves]
