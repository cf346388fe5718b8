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
    KERNELS,
    OptimizerState,
    build_optimizer,
    is_known,
    state_on,
)
from drlpp.runtime.weights.policies import Stash, Vanilla, WeightPolicy
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import GroupMembers, OptimizerSpec, divided

OWN = -1
"""What weights have in the place of a tie that no other stage holds."""

_POLICY_STATE, _GROUP = "weight_policy", "group"


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
        policy, optimizer = self.policy, self.policy.optimizer
        state: OptimizerState = {}
        # The rate of the last update, and what an optimizer keeps for all weights together.
        options = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
        for name, weight, known in zip(
            self.members.names, policy.weights, policy.state(), strict=True
        ):
            state[name] = {**optimizer.state.get(weight, {}), _GROUP: dict(options)}
            if known:
                state[name][_POLICY_STATE] = known
        return state

    def load_optimizer_state(self, state: OptimizerState) -> None:
        """Take over what :meth:`optimizer_state` gave, of these weights among others."""
        policy, optimizer = self.policy, self.policy.optimizer
        own, of_policy = optimizer.param_groups[0], []
        for name, weight in zip(self.members.names, policy.weights, strict=True):
            # The checkpoint may be of another device.
            kept = state_on(weight.device, state.get(name, {}))
            of_policy.append(state_on(weight.device, kept.pop(_POLICY_STATE, {})))
            group = kept.pop(_GROUP, {})
            options = {k: v for k, v in group.items() if k not in ("params", *KERNELS)}
            # Of a user's own class it is not known what it keeps.
            known = is_known(type(optimizer))
            own.update({k: v for k, v in options.items() if k in own or not known})
            if kept:
                optimizer.state[weight] = kept
        policy.load_state(of_policy)


def weight_groups(
    method: Method,
    weights: Mapping[str, Tensor],
    optimizer: OptimizerSpec,
    delay: int,
    tie: int = OWN,
) -> list[WeightGroup]:
    """Return the groups of a stage's own weights, or of its copies of those of a tie."""
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
