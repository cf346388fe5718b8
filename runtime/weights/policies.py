"""Weight policies: which weights a forward and a backward of a stage use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.optim import Optimizer

from drlpp.runtime.weights.displacements import (
    AdamStep,
    LastStep,
    SmoothedGradient,
    TableOne,
    Trajectory,
)
from drlpp.runtime.weights.weight_policy import Vanilla, WeightPolicy
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import WeightUse


class Stash(WeightPolicy):
    """Weight stashing: forward and backward use the same version (pipedream §3.3).

    Which one is the schedule's: the newest at the forward (PipeDream), that of the input stage
    (vertical sync), or the one before (PipeDream-2BW). A version is a set of leaf tensors that
    share storage with the newest weights until an update would change what a part still needs;
    then the newest weights move to storage of their own. So only versions in use are held.
    """

    stashes = True

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        super().__init__(weights, optimizer)
        self._versions: dict[int, list[Tensor]] = {}
        self._pending: Counter[int] = Counter()

    def begin(
        self, uses: Mapping[MicrobatchId, WeightUse], rates: Sequence[float], version: int = 0
    ) -> None:
        """Prepare for a run; older versions that it still needs are kept."""
        super().begin(uses, rates, version)
        self._pending = Counter(use.stashed for use in uses.values())
        # Parts in flight refer to the very tensors that were lent to their forwards.
        kept = {v: leaves for v, leaves in self._versions.items() if v <= version}
        self._versions = {v: leaves for v, leaves in kept.items() if self._pending[v]}
        self._versions[version] = kept.get(version) or self._leaves()

    def _leaves(self) -> list[Tensor]:
        # .data has a version counter of its own: autograd must not see the updates of the newest.
        return [weight.data.requires_grad_() for weight in self.weights]

    @contextmanager
    def forward_weights(self, use: WeightUse) -> Iterator[list[Tensor]]:
        """Lend the stashed version."""
        yield self._versions[use.stashed]

    @contextmanager
    def backward_weights(self, use: WeightUse) -> Iterator[list[Tensor]]:
        """Lend the same version as the forward."""
        yield self._versions[use.stashed]

    def done_with(self, use: WeightUse) -> None:
        """Give up the version when no other part needs it."""
        self._pending[use.stashed] -= 1
        if not self._pending[use.stashed] and use.stashed != self._version:
            del self._versions[use.stashed]

    def _step(self) -> None:
        """Make one step on the newest weights; older versions stay as they are while in use."""
        self._part_from_newest()
        self.optimizer.step()
        self._versions[self._version + 1] = self._leaves()

    def _stay(self) -> None:
        """Carry the newest weights over; parts of the version before keep their own storage."""
        self._part_from_newest()
        self._versions[self._version + 1] = self._leaves()

    def _part_from_newest(self) -> None:
        if self._pending[self._version]:
            for weight in self.weights:
                weight.data = weight.data.clone()
        else:
            del self._versions[self._version]

    def copies(self) -> list[Tensor]:
        return [leaf for leaves in self._versions.values() for leaf in leaves]

    def versions(self) -> dict[int, list[Tensor]]:
        """Return all versions but the newest."""
        return {v: leaves for v, leaves in self._versions.items() if v != self._version}

    def load_versions(self, versions: Mapping[int, Sequence[Tensor]]) -> None:
        self._versions = {
            version: [leaf.detach().clone().requires_grad_() for leaf in leaves]
            for version, leaves in versions.items()
        }


def build_policy(
    method: Method, weights: Sequence[Tensor], optimizer: Optimizer, delay: int
) -> WeightPolicy:
    """Build the weight policy of ``method`` for weights of a stage.

    Args:
        method: names it.
        weights: of the stage, all or a group of them.
        optimizer: of these weights.
        delay: s of the stage in steady state; without delay all policies use the newest weights,
            but for those that look ahead of the backward.
    """
    kind: type[WeightPolicy]
    match method.policy:
        case "spectrain":
            kind = SmoothedGradient if SmoothedGradient.has(optimizer) else LastStep
        case "xpipe":
            kind = TableOne if TableOne.has_adam(optimizer) else AdamStep
        case "2bw" | "stash-vertical":
            kind = Stash
        case "sync":
            kind = WeightPolicy
        case "vanilla" | "stash" | "pipeoptim" | "last-step" | "pipemare" if delay == 0:
            kind = WeightPolicy
        case "stash":
            kind = Stash
        case "pipeoptim":
            kind = TableOne if TableOne.has(optimizer) else LastStep
        case "last-step":
            kind = LastStep
        case "pipemare" if method.correction_decay:
            return Trajectory(weights, optimizer, method.correction_decay ** (1 / delay))
        case "vanilla" | "pipemare":
            kind = Vanilla
        case _:
            raise NotImplementedError(
                f"the workers have no implementation of policy {method.policy}"
            )
    return kind(weights, optimizer)
