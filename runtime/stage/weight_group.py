"""Weights of a stage that belong together: one optimizer updates them, one policy lends them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from drlpp.runtime.weights.optimizers import (
    OptimizerState,
    build_optimizer,
    check_alike,
    load_optimizer_state,
    named_optimizer_state,
    state_on,
)
from drlpp.runtime.weights.policies import build_policy
from drlpp.runtime.weights.weight_policy import WeightPolicy
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.specs.parameter_groups import GroupMembers, divided

OWN = -1
"""What weights have in the place of a tie that no other stage holds."""

_POLICY_STATE = "weight_policy"
_SCALARS = ("rate", "step")


@dataclass(frozen=True)
class WeightGroup:
    """One of the groups that all weights of a stage are in.

    Attributes:
        tie: which of the pipeline's ties the weights are of (:mod:`drlpp.schedule.ties`), or
            :data:`OWN`. Groups of one tie share gradients, and the norm that they are clipped by.
        members: their names, optimizer and learning rate.
        places: where the weights stand among those of the same tie.
        policy: lends them to passes, keeps versions, and updates them by its optimizer.
    """

    tie: int
    members: GroupMembers
    places: tuple[int, ...]
    policy: WeightPolicy

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights."""
        return self.members.names

    def optimizer_state(self) -> OptimizerState:
        """Return the optimizer's state and the weight policy's by parameter name."""
        policy = self.policy
        state = named_optimizer_state(policy.optimizer, self.names, policy.weights)
        for name, known in zip(self.names, policy.state(), strict=True):
            if known:
                state[name][_POLICY_STATE] = known
        return state

    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Take over what :meth:`optimizer_state` gave, of these weights among others.

        Raises:
            InvalidFile: it does not suit them.
        """
        weights = self.policy.weights
        known = {name: dict(state.get(name, {})) for name in self.names}
        of_policy = [known[name].pop(_POLICY_STATE, {}) for name in self.names]
        found = {name: known[name] for name in self.names if name in state}
        load_optimizer_state(self.policy.optimizer, self.names, weights, found)
        for name, weight, values in zip(self.names, weights, of_policy, strict=True):
            for key, value in values.items():
                # What is no scalar of its own has a value for every element.
                if not (key in _SCALARS and isinstance(value, Tensor) and value.dim() == 0):
                    check_alike(f"{key!r} of the weight policy's state of {name}", value, weight)
        self.policy.load_state([state_on(weights[0].device, values) for values in of_policy])


def weight_groups(
    method: Method,
    weights: Mapping[str, Tensor],
    optimizer: OptimizerSpec,
    delay: int,
    tie: int = OWN,
) -> list[WeightGroup]:
    """Return the groups of weights that only one stage holds, or of its copies of those of a tie.

    Args:
        method: names the policy.
        weights: leaf tensors, which are updated in place, by name.
        optimizer: with groups of its own, or without.
        delay: s of the weights in steady state.
        tie: which, if any.
    """
    places = {name: place for place, name in enumerate(weights)}
    groups = []
    for members in divided(optimizer, weights) if weights else ():
        chosen = [weights[name] for name in members.names]
        policy = build_policy(method, chosen, build_optimizer(members.optimizer, chosen), delay)
        groups.append(
            WeightGroup(tie, members, tuple(places[name] for name in members.names), policy)
        )
    return groups
