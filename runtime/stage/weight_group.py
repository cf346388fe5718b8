"""Weights of a stage that belong together: one optimizer updates them, one policy lends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from drlpp.runtime.weights.displacements import (
    AdamStep,
    LastStep,
    SmoothedGradient,
    TableOne,
    Trajectory,
)
from drlpp.runtime.weights.optimizers import (
    OptimizerState,
    build_optimizer,
    load_optimizer_state,
    named_optimizer_state,
    state_on,
)
from drlpp.runtime.weights.policies import Stash, Vanilla, WeightPolicy
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import GroupMembers, OptimizerSpec, divided

OWN = -1
"""What weights have in the place of a tie that no other stage holds."""

_POLICY_STATE = "weight_policy"


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

    def optimizer_state(self) -> OptimizerState:
        """Return the optimizer's state and the weight policy's by parameter name."""
        policy = self.policy
        state = named_optimizer_state(policy.optimizer, self.members.names, policy.weights)
        for name, known in zip(self.members.names, policy.state(), strict=True):
            if known:
                state[name][_POLICY_STATE] = known
        return state

    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Take over what :meth:`optimizer_state` gave, of these weights among others."""
        weights = self.policy.weights
        known = {name: dict(state.get(name, {})) for name in self.members.names}
        of_policy = [known[name].pop(_POLICY_STATE, {}) for name in self.members.names]
        found = {name: known[name] for name in self.members.names if name in state}
        load_optimizer_state(self.policy.optimizer, self.members.names, weights, found)
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
