"""Weights of a stage that are updated together: with them their gradients, optimizer and policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter

from drlpp.runtime.ipc.protocol import WeightPlan
from drlpp.runtime.stage.gradients import (
    Gradients,
    SharedGradients,
    SingleGradients,
    SumOverReplicas,
)
from drlpp.runtime.weights.optimizers import (
    OptimizerState,
    build_optimizer,
    check_alike,
    load_optimizer_state,
    named_optimizer_state,
    state_on,
)
from drlpp.runtime.weights.policies import Weightless, build_policy
from drlpp.runtime.weights.weight_policy import WeightPolicy
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import MOMENTUM_OPTIONS, OptimizerSpec

_POLICY_STATE = "weight_policy"
_SCALARS = ("rate", "step")


class WeightGroup:
    """What updates some weights of a stage, all of them at once.

    Args:
        names: of the weights.
        weights: their leaf tensors, which are updated in place.
        method: the weight policy.
        optimizer: what makes the updates, with groups by the names of parameters.
        delay: s of the weights in steady state.
        optimizer_state: of an earlier run, by parameter name.
        sum_over_replicas: starts a sum over the replicas of the stage, None without replication.

    Attributes:
        names: of the weights.
        policy: lends them to passes.
        gradients: of the next update.
    """

    def __init__(
        self,
        names: Sequence[str],
        weights: Sequence[Tensor],
        method: Method,
        optimizer: OptimizerSpec,
        delay: int,
        optimizer_state: OptimizerState,
        sum_over_replicas: SumOverReplicas | None,
    ) -> None:
        self.names = tuple(names)
        self._method = method
        self._sum_over_replicas = sum_over_replicas
        self.policy = self._build_policy(weights, optimizer, delay)
        if weights:
            known = {name: dict(state) for name, state in optimizer_state.items()}
            policy_state = [known.get(name, {}).pop(_POLICY_STATE, {}) for name in self.names]
            for part, part_names in self._parts():
                load_optimizer_state(
                    part.optimizer, part_names, part.weights, known, self._own_options
                )
            for name, weight, of_policy in zip(self.names, weights, policy_state, strict=True):
                _check_policy_state(name, weight, of_policy)
            device = weights[0].device
            self.policy.load_state([state_on(device, state) for state in policy_state])
        self.gradients: Gradients = SingleGradients(weights)
        self.plan = WeightPlan({}, ())

    def _build_policy(
        self, weights: Sequence[Tensor], optimizer: OptimizerSpec, delay: int
    ) -> WeightPolicy:
        if not weights:
            return Weightless()
        if optimizer.groups:
            # Workers load little that they do not need.
            from drlpp.runtime.weights.grouped_policy import grouped_policy

            return grouped_policy(self._method, self.names, weights, optimizer, delay)
        return build_policy(self._method, weights, build_optimizer(optimizer, weights), delay)

    def _parts(self) -> Iterator[tuple[WeightPolicy, list[str]]]:
        """Yield the policy of every optimizer's weights, and their names."""
        names = {id(weight): name for name, weight in zip(self.names, self.weights, strict=True)}
        for part in self.policy.parts:
            yield part, [names[id(weight)] for weight in part.weights]

    @property
    def _own_options(self) -> frozenset[str]:
        """Options of the optimizer that are this stage's, so no other's in a checkpoint."""
        return frozenset() if self._method.stage_momentum is None else MOMENTUM_OPTIONS

    @property
    def weights(self) -> list[Tensor]:
        """The newest weights, in the order of ``names``."""
        return self.policy.weights

    def begin(self, plan: WeightPlan) -> None:
        """Prepare for a run."""
        self.plan = plan
        self.policy.begin(plan.uses, plan.rates, plan.version)
        if plan.shared != isinstance(self.gradients, SharedGradients):
            self.gradients = self._collector(plan.shared)

    def _collector(self, shared: bool) -> Gradients:
        if not shared:
            return SingleGradients(self.weights)
        keep_last = self.policy.reads_last_gradient
        return SharedGradients(self.weights, self._sum_over_replicas, keep_last=keep_last)

    def use(self, part: MicrobatchId) -> WeightUse:
        """Return which versions a part uses."""
        return self.plan.uses[part]

    def update(self, contributions: int, squared_norm: float | None = None) -> bool:
        """Update the weights with the mean of the gradients of ``contributions`` parts.

        Args:
            contributions: that the gradients are the sum of.
            squared_norm: of all gradients that are clipped together, before their division; None
                if these are no others than the group's.

        Returns:
            Whether there was an update: where the method skips updates, one whose gradients are
            not finite changes nothing.
        """
        if self._method.needs_norm and squared_norm is None:
            squared_norm = self.gradients.squared_norm()
        is_finite = squared_norm is None or math.isfinite(squared_norm)
        if self._method.skips_updates and not is_finite:
            self.gradients.discard()
            self.policy.skip_update()
            return False
        divisor = contributions * self._method.applied_loss_scale
        self.gradients.assign_gradients(divisor)
        if self._method.clip_norm and squared_norm is not None:
            self._clip(squared_norm**0.5 / divisor)
        self.policy.update()
        if not self.policy.reads_last_gradient:
            # The next backward needs no room next to it.
            for weight in self.weights:
                weight.grad = None
        return True

    def _clip(self, norm: float) -> None:
        """Scale the gradients as ``torch.nn.utils.clip_grad_norm_`` does for this norm."""
        scale = self._method.clip_norm / (norm + 1e-6)
        if scale < 1:
            for weight in self.weights:
                if weight.grad is not None:
                    # Not in place: autograd may give one tensor to two weights, or to a message.
                    weight.grad = weight.grad * scale

    def state(self) -> dict[str, Tensor]:
        """Return the newest weights by name."""
        return {n: w.detach() for n, w in zip(self.names, self.weights, strict=True)}

    def optimizer_state(self) -> OptimizerState:
        """Return the optimizer's state and the weight policy's by parameter name."""
        state: OptimizerState = {}
        for part, names in self._parts():
            state |= named_optimizer_state(part.optimizer, names, part.weights, self._own_options)
        for name, known in zip(self.names, self.policy.state(), strict=True):
            if known:
                state[name][_POLICY_STATE] = known
        return state

    # Parts in flight, for a checkpoint

    def kept_for_replay(self, lent: Sequence[Tensor]) -> list[Tensor] | None:
        """Return what a forward was lent, if there is any and the policy does not keep it."""
        if not lent or self.policy.stashes:
            return None
        return [weight.detach().clone() for weight in lent]

    def in_flight_state(self) -> dict[str, Any]:
        """Return sums of gradients and older versions, as :meth:`load_in_flight_state` takes them.

        It needs them with parts in flight.
        """
        stashed = self.policy.versions()
        return {
            "gradients": self.gradients.state(),
            "stashed": {v: [leaf.detach() for leaf in kept] for v, kept in stashed.items()},
        }

    def load_in_flight_state(self, state: Mapping[str, Any], plan: WeightPlan) -> None:
        """Begin a run that continues where :meth:`in_flight_state` was taken."""
        for kept in (state["gradients"], *state["stashed"].values()):
            for name, weight, value in zip(self.names, self.weights, kept, strict=True):
                if value is not None:
                    check_alike(f"a gradient or version of {name} in flight", value, weight)
        self.policy.load_versions(state["stashed"])
        self.begin(plan)
        self.gradients.load_state(state["gradients"])

    @contextmanager
    def replaying(
        self, part: MicrobatchId, kept: Sequence[Tensor] | None
    ) -> Iterator[list[Tensor]]:
        """Lend the weights of a forward that was made before; none are given if they are kept."""
        if not kept:
            with self.policy.forward_weights(self.use(part)) as stashed:
                yield stashed
            return
        newest = [weight.detach().clone() for weight in self.weights]
        self._overwrite(kept)
        yield self.weights
        self._overwrite(newest)

    def _overwrite(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad(), _unsafe_preserve_version_counter(tuple(self.weights)):
            torch._foreach_copy_(self.weights, list(values))


def _check_policy_state(name: str, weight: Tensor, state: Mapping[str, Any]) -> None:
    for key, value in state.items():
        # What is no scalar of its own has a value for every element.
        if not (isinstance(value, Tensor) and key in _SCALARS and value.dim() == 0):
            check_alike(f"{key!r} of the weight policy's state of {name}", value, weight)
