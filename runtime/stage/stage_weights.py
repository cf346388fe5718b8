"""All weights of a stage, in groups; and the gradients that update them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from drlpp.errors import NotFinite
from drlpp.runtime.ipc.protocol import RunPlan, WeightPlan
from drlpp.runtime.stage.gradients import Gradients, SharedGradients, SumOverReplicas
from drlpp.runtime.stage.weight_group import OWN, WeightGroup
from drlpp.runtime.weights.optimizers import OptimizerState
from drlpp.runtime.weights.policies import WeightPolicy
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import WeightUse

Value = TypeVar("Value")


class StageWeights:
    """The weights of a stage: its own, then its copies of weights that other stages hold too.

    Gradients of all weights of one tie, and of all own ones, are collected, clipped and divided
    together; each group then makes its update.

    A *sum* of a tie is a list with a tensor for each weight, and one with a number for each: 0 for
    those without a gradient, whose tensor is 0. So it travels, and the optimizer leaves alone what
    no stage has a gradient of.

    Args:
        stage: that holds them.
        names: of the weights, by tie: first the stage's own.
        groups: that they are in.
        method: says what is done with gradients.
        optimizer_state: of an earlier run, by parameter name.
        sum_over_replicas: starts a sum over the replicas of the stage, None without replication.
    """

    def __init__(
        self,
        stage: int,
        names: Mapping[int, Sequence[str]],
        groups: Sequence[WeightGroup],
        method: Method,
        optimizer_state: OptimizerState,
        sum_over_replicas: SumOverReplicas | None,
    ) -> None:
        self.names = [name for of_tie in names.values() for name in of_tie]
        self.groups = groups
        self.plans: dict[int, WeightPlan] = dict.fromkeys(names, WeightPlan({}, ()))
        self._stage = stage
        self._method = method
        self._sum_over_replicas = sum_over_replicas
        self._of = {tie: [group for group in groups if group.tie == tie] for tie in names}
        for group in groups:
            group.load_optimizer_state(optimizer_state)
        self._weights = {
            tie: _by_place((group, group.policy.weights) for group in self._of[tie])
            for tie in names
        }
        self.gradients: dict[int, Gradients] = {
            tie: Gradients(weights) for tie, weights in self._weights.items()
        }

    @property
    def ties(self) -> list[int]:
        """The ties whose weights the stage has copies of."""
        return [tie for tie in self._of if tie != OWN]

    @property
    def newest(self) -> list[Tensor]:
        """The newest weights, in the order of ``names``."""
        return [weight for weights in self._weights.values() for weight in weights]

    @property
    def policies(self) -> list[WeightPolicy]:
        """The weight policies of all groups."""
        return [group.policy for group in self.groups]

    def held_bytes(self) -> int:
        """Return how much memory holds weights now: the newest, and copies of any version."""
        copies = [copy for policy in self.policies for copy in policy.copies()]
        held = {t.untyped_storage().data_ptr(): t.nbytes for t in (*self.newest, *copies)}
        return sum(held.values())

    def begin(self, plan: RunPlan) -> None:
        """Prepare for a run."""
        for tie, groups in self._of.items():
            own = self.plans[tie] = plan.weights[tie]
            for group in groups:
                group.policy.begin(own.uses, group.members.rates(own.rates))
            if own.shared != isinstance(self.gradients[tie], SharedGradients):
                weights, sums = self._weights[tie], self._sum_over_replicas
                shared = SharedGradients(weights, sums) if own.shared else Gradients(weights)
                self.gradients[tie] = shared

    # Passes

    @contextmanager
    def lent(self, part: MicrobatchId, *, backward: bool = False) -> Iterator[list[Tensor]]:
        """Lend what a forward uses, or a backward or recomputation, in the order of ``names``."""
        with ExitStack() as lending:
            lent = []
            for group in self.groups:
                lend = group.policy.lent(self._use(group, part), backward=backward)
                lent.append((group, lending.enter_context(lend)))
            yield [
                weight
                for tie in self._of
                for weight in _by_place(given for given in lent if given[0].tie == tie)
            ]

    def _use(self, group: WeightGroup, part: MicrobatchId) -> WeightUse:
        return self.plans[group.tie].uses[part]

    def collecting(self, leaves: Sequence[Tensor], *, last: bool) -> AbstractContextManager[None]:
        """Enclose a backward with respect to ``leaves``; ``last`` before a sum over replicas.

        Copies of tied weights are summed behind the stage's own weights, not meanwhile.
        """
        return self.gradients[OWN].collecting(leaves[: len(self._weights[OWN])], last=last)

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add what a backward found, in the order of ``names``, to the gradients of updates."""
        for tie, found in self._by_tie(gradients):
            self.gradients[tie].add(found)

    def done_with(self, part: MicrobatchId) -> None:
        """Note that a part has made its backward."""
        for group in self.groups:
            group.policy.done_with(self._use(group, part))

    def _by_tie(self, values: Sequence[Value]) -> Iterator[tuple[int, Sequence[Value]]]:
        """Yield for every tie its share of what is in the order of ``names``."""
        end = 0
        for tie, weights in self._weights.items():
            begin, end = end, end + len(weights)
            yield tie, values[begin:end]

    # Updates

    def update(
        self,
        contributions: int,
        squared_norm: float | None = None,
        tie: int = OWN,
        gradients: Gradients | None = None,
    ) -> bool:
        """Update the weights of a tie with the mean of the gradients of ``contributions`` parts.

        Args:
            contributions: that the gradients are the sum of.
            squared_norm: of all gradients that are clipped together, before their division; None
                if these are no others than those of the tie.
            tie: which weights.
            gradients: by default those that were collected here.

        Returns:
            Whether there was an update: where the method skips updates, one whose gradients are
            not finite changes nothing.
        """
        gradients, method = gradients or self.gradients[tie], self._method
        policies = [group.policy for group in self._of[tie]]
        if method.needs_norm and squared_norm is None:
            squared_norm = gradients.squared_norm()
        if method.skips_updates and squared_norm is not None and not math.isfinite(squared_norm):
            gradients.discard()
            for policy in policies:
                policy.update(skipped=True)
            return False
        divisor = contributions * method.applied_loss_scale
        gradients.assign_gradients(divisor)
        if method.clip_norm and squared_norm is not None:
            clip(self._weights[tie], squared_norm**0.5 / divisor, method.clip_norm)
        for policy in policies:
            policy.update()
            for weight in policy.weights:
                # The next backward needs no room next to it.
                weight.grad = None
        return True

    def is_root(self, tie: int) -> bool:
        """Return whether the stage is the root of a tie, or alone has the weights."""
        return self.plans[tie].root in (None, self._stage)

    def contribution(self, tie: int) -> list[Tensor]:
        """Take the gradients of this stage's copies, over parts and replicas, as a sum."""
        found, weights = self.gradients[tie].take(), self._weights[tie]
        reached = torch.tensor([float(gradient is not None) for gradient in found])
        filled = [
            torch.zeros_like(weight) if gradient is None else gradient.contiguous()
            for weight, gradient in zip(weights, found, strict=True)
        ]
        return [*filled, reached.to(weights[0].device)]

    def update_by(
        self, tie: int, total: Sequence[Tensor], contributions: int, squared_norm: float | None
    ) -> bool:
        """Update the copies by a sum over all stages; arguments and result as in ``update``."""
        *values, reached = total
        summed = Gradients(self._weights[tie])
        summed.add(
            [g if count else None for g, count in zip(values, reached.tolist(), strict=True)]
        )
        return self.update(contributions, squared_norm, tie, summed)

    # Checkpoints

    def state(self) -> dict[str, Tensor]:
        """Return the newest weights by name."""
        return {name: w.detach() for name, w in zip(self.names, self.newest, strict=True)}


def check_finite(state: Mapping[str, Tensor], initial: Mapping[str, Tensor]) -> None:
    """Check that training has left weights and buffers finite that were so at its beginning.

    A buffer may hold infinite values on purpose, such as a mask.

    Raises:
        NotFinite: naming the first that is not.
    """
    for name, value in state.items():
        if not value.isfinite().all() and initial[name].isfinite().all():
            raise NotFinite(f"{name} has values that are not finite")


def _by_place(found: Iterable[tuple[WeightGroup, Sequence[Value]]]) -> list[Value]:
    """Return what the groups of a tie have for their weights, in the order of all of these."""
    known = list(found)
    if len(known) == 1:
        return list(known[0][1])
    values = {
        place: value
        for group, of_group in known
        for place, value in zip(group.places, of_group, strict=True)
    }
    return [values[place] for place in range(len(values))]


def clip(weights: Sequence[Tensor], norm: float, clip_norm: float) -> None:
    """Scale gradients as ``torch.nn.utils.clip_grad_norm_`` does for this norm."""
    scale = clip_norm / (norm + 1e-6)
    if scale < 1:
        for weight in weights:
            if weight.grad is not None:
                # Not in place: autograd may give one tensor to two weights, or to a message.
                weight.grad = weight.grad * scale
