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

import torch
from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter
from torch.optim import Optimizer

from drlpp.runtime.weights.displacements import (
    AdamStep,
    LastStep,
    OptimizerRule,
    PolicyState,
    SmoothedGradient,
    Trajectory,
    WeightShift,
)
from drlpp.runtime.weights.error_feedback import ErrorFeedback
from drlpp.runtime.weights.update_rules import has_rule
from drlpp.runtime.weights.weight_policy import WeightPolicy
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import WeightUse


class Sync(WeightPolicy):
    """Forward and backward use the same W_t, since no update comes between them (s = 0).

    If one did, autograd would refuse the backward.
    """

    def _step(self) -> None:
        self.optimizer.step()


class Vanilla(WeightPolicy):
    """Forward uses W_t, backward whatever the weights are by then, W_{t+s} (pipeoptim §V-E)."""

    def _step(self) -> None:
        """Step in place, unseen by the backwards that are still to come."""
        with _unsafe_preserve_version_counter(tuple(self.weights)):
            self.optimizer.step()


class PredictedWeights(Vanilla):
    """Passes use weights that are predicted, or corrected, from the newest; two versions at most.

    With :class:`~drlpp.runtime.weights.displacements.OptimizerRule` or ``LastStep`` this is
    PipeOptim: the forward uses Ŵ_{t+s}, the backward W_{t+s} as it is then (pipeoptim §IV).
    SpecTrain and XPipe predict for the backward again, PipeMare's T2 moves the backward only. Where
    nothing is to be looked ahead, as on the last stage, nothing is copied.
    """

    def __init__(
        self, weights: Sequence[Tensor], optimizer: Optimizer, displacement: WeightShift
    ) -> None:
        super().__init__(weights, optimizer)
        self.displacement = displacement

    @property
    def predicts(self) -> bool:
        """Whether it moves weights: always."""
        return True

    @property
    def reads_last_gradient(self) -> bool:
        """Whether the displacement needs the gradients of the newest update."""
        return self.displacement.reads_last_gradient

    @contextmanager
    def _displaced(self, lead: int) -> Iterator[list[Tensor]]:
        if lead == 0:
            yield self.weights
            return
        with self._moving():
            self.displacement.displace_(lead, self.rate_sum(lead))
        try:
            yield self.weights
        finally:
            with self._moving():
                self.displacement.recover_()

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Enclose what moves the weights, unseen by autograd."""
        begin = self.clock.mark()
        with torch.no_grad(), _unsafe_preserve_version_counter(tuple(self.weights)):
            yield
        self.predictions.append((begin, self.clock.mark()))

    @contextmanager
    def forward_weights(self, use: WeightUse) -> Iterator[list[Tensor]]:
        """Lend the weights of ``forward_lead`` updates ahead."""
        with self._displaced(use.forward_lead) as weights:
            yield weights

    @contextmanager
    def backward_weights(self, use: WeightUse) -> Iterator[list[Tensor]]:
        """Lend the weights of ``backward_lead`` updates ahead."""
        with self._displaced(use.backward_lead) as weights:
            yield weights

    def _step(self) -> None:
        with torch.no_grad():
            self.displacement.before_update()
            super()._step()
            self.displacement.after_update()

    def _stay(self) -> None:
        with torch.no_grad():
            self.displacement.after_skipped_update()

    def copies(self) -> list[Tensor]:
        """Return the cached weights."""
        return self.displacement.copies()

    def state(self) -> PolicyState:
        """Return the state of the displacement."""
        return self.displacement.state()

    def load_state(self, state: PolicyState) -> None:
        """Take over the state of the displacement."""
        self.displacement.load_state(state)


class Stash(WeightPolicy):
    """Weight stashing: forward and backward use the same version (pipedream §3.3).

    Which one is the schedule's: the newest at the forward (PipeDream), that of the input stage
    (vertical sync), or the one before (PipeDream-2BW). A version is a set of leaf tensors that
    share storage with the newest weights until an update would change what a part still needs;
    then the newest weights move to storage of their own. So only versions in use are held.

    Args:
        weights, optimizer: as in :class:`WeightPolicy`.
        feedback: corrects every step of the optimizer, if given.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        optimizer: Optimizer,
        feedback: ErrorFeedback | None = None,
    ) -> None:
        super().__init__(weights, optimizer)
        self._feedback = feedback
        self._versions: dict[int, list[Tensor]] = {}
        self._pending: Counter[int] = Counter()

    @property
    def stashes(self) -> bool:
        """Whether it keeps versions: always."""
        return True

    def begin(
        self, uses: Mapping[MicrobatchId, WeightUse], rates: Sequence[float], version: int = 0
    ) -> None:
        """Prepare for a run; older versions that it still needs are kept."""
        super().begin(uses, rates, version)
        if self._feedback and version == 0:
            self._feedback.forget()
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
        if self._feedback is None:
            self.optimizer.step()
        else:
            stashed = self._versions.get(self._version)
            before = stashed or [weight.detach().clone() for weight in self.weights]
            self.optimizer.step()
            self._feedback.correct_(before)
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
        """Return all versions."""
        return [leaf for leaves in self._versions.values() for leaf in leaves]

    def versions(self) -> dict[int, list[Tensor]]:
        """Return all versions but the newest."""
        return {v: leaves for v, leaves in self._versions.items() if v != self._version}

    def load_versions(self, versions: Mapping[int, Sequence[Tensor]]) -> None:
        """Take over versions; :meth:`begin` has to follow."""
        self._versions = {
            version: [leaf.detach().clone().requires_grad_() for leaf in leaves]
            for version, leaves in versions.items()
        }

    def state(self) -> PolicyState:
        """Return the state of the feedback."""
        return self._feedback.state() if self._feedback else super().state()

    def load_state(self, state: PolicyState) -> None:
        """Take over the state of the feedback."""
        if self._feedback:
            self._feedback.load_state(state)


def build_policy(
    method: Method, weights: Sequence[Tensor], optimizer: Optimizer, delay: int
) -> WeightPolicy:
    """Build the weight policy of ``method`` for weights of a stage.

    Args:
        method: names it.
        weights: of the stage, all or a group of them.
        optimizer: of these weights.
        delay: s of the stage in steady state; without delay all policies are :class:`Sync`, but
            for those that look ahead of the backward.
    """
    displacement: type[WeightShift]
    match method.policy:
        case "spectrain":
            return PredictedWeights(weights, optimizer, SmoothedGradient(weights, optimizer))
        case "xpipe":
            return PredictedWeights(weights, optimizer, AdamStep(weights, optimizer))
        case "2bw" | "stash-vertical":
            return Stash(weights, optimizer)
        case "2bw-ef":
            return Stash(weights, optimizer, ErrorFeedback(weights, optimizer))
        case "sync":
            return Sync(weights, optimizer)
        case "vanilla" | "stash" | "pipeoptim" | "last-step" | "pipemare" if delay == 0:
            return Sync(weights, optimizer)
        case "stash":
            return Stash(weights, optimizer)
        case "pipeoptim":
            displacement = OptimizerRule if has_rule(optimizer) else LastStep
            return PredictedWeights(weights, optimizer, displacement(weights, optimizer))
        case "last-step":
            return PredictedWeights(weights, optimizer, LastStep(weights, optimizer))
        case "pipemare" if method.correction_decay:
            decay = method.correction_decay ** (1 / delay)
            return PredictedWeights(weights, optimizer, Trajectory(weights, optimizer, decay))
        case "vanilla" | "pipemare":
            return Vanilla(weights, optimizer)
    raise NotImplementedError(f"the workers have no implementation of policy {method.policy}")
