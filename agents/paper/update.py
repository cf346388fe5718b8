"""PPO's objective over the choices of a rollout (drl-pp §3.4), and the likelihood of the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drlpp.agents.paper.policy import PolicyEvaluation, TrajectoryPolicy
from drlpp.agents.paper.rollout import Rewarded, Trajectory
from drlpp.agents.paper.walk import PartitionWalk


class Batch(NamedTuple):
    """A rollout, ready for several passes.

    Attributes:
        walks: of the partition schemes whose reward is known.
        walk_advantages: of every scheme, ``(walks,)``.
        trajectories: all placements.
        placement_advantages: of every placement, ``(trajectories,)``.
    """

    walks: list[PartitionWalk]
    walk_advantages: Tensor
    trajectories: list[Trajectory]
    placement_advantages: Tensor


class Update(NamedTuple):
    """One pass over the rollout: the loss without entropies, and what is logged."""

    policy_gradient_loss: Tensor
    partitioner_entropy: Tensor
    scheduler_entropy: Tensor
    approx_kl: float
    clip_fraction: float


def evaluate_batch(batch: Batch, evaluation: PolicyEvaluation, clip_range: float) -> Update:
    """Compare the policy as it is now with the one that sampled ``batch``.

    Every choice of a walk has the advantage of its scheme, every choice of an accelerator that of
    its placement. The means over the two kinds of choices are added, so that neither weighs more
    for being more numerous.
    """
    free = [walk.free_log_probs for walk in batch.walks]
    choices = torch.tensor([len(log_probs) for log_probs in free], dtype=torch.int64)
    partitioner = clipped_surrogate(
        evaluation.partitioner_log_probs,
        torch.tensor([log_prob for log_probs in free for log_prob in log_probs]),
        batch.walk_advantages.repeat_interleave(choices),
        clip_range,
    )
    old = torch.tensor([trajectory.log_probs for trajectory in batch.trajectories])
    chosen = evaluation.scheduler_free.cpu()
    scheduler = clipped_surrogate(
        evaluation.scheduler_log_probs,
        old[chosen],
        batch.placement_advantages[:, None].expand_as(old)[chosen],
        clip_range,
    )
    total = len(evaluation.partitioner_log_probs) + len(evaluation.scheduler_log_probs)
    loss, kl, clipped = (
        of_walks + placed for of_walks, placed in zip(partitioner, scheduler, strict=True)
    )
    return Update(
        policy_gradient_loss=loss,
        partitioner_entropy=mean(evaluation.partitioner_entropies),
        scheduler_entropy=mean(evaluation.scheduler_entropies),
        approx_kl=kl.item() / max(total, 1),
        clip_fraction=clipped.item() / max(total, 1),
    )


def clipped_surrogate(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_range: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return PPO's clipped loss, and the sums over the choices of their KL and of those clipped.

    The ratio is clipped by choice. All tensors have shape ``(choices,)``.
    """
    log_ratio = log_probs - old_log_probs.to(log_probs.device)
    advantages = advantages.to(log_probs.device)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    loss = -mean(torch.min(advantages * ratio, advantages * clipped))
    with torch.no_grad():
        kl = (ratio - 1 - log_ratio).sum().double()
        outside = ((ratio - 1).abs() > clip_range).sum()
    return loss, kl, outside


def imitation_loss(policy: TrajectoryPolicy, elites: Sequence[Rewarded]) -> Tensor:
    """Return minus the mean log-probability of the choices that led to the best placements."""
    found = _replayed(policy, elites)
    return -mean(found.partitioner_log_probs) - mean(found.scheduler_log_probs)


def surprise(policy: TrajectoryPolicy, elites: Sequence[Rewarded]) -> Tensor:
    """Return minus the mean log-probability of the best placements, all choices of each together.

    Where it is at most ln 2n for n of them, they make up half of what the policy draws, or more.
    """
    found = _replayed(policy, elites)
    total = found.partitioner_log_probs.sum() + found.scheduler_log_probs.sum()
    return -total / len(elites)


def _replayed(policy: TrajectoryPolicy, elites: Sequence[Rewarded]) -> PolicyEvaluation:
    trajectories = [elite.trajectory for elite in elites]
    return policy.evaluate([trajectory.walk for trajectory in trajectories], trajectories)


def mean(values: Tensor) -> Tensor:
    """Return the mean, or 0 if there are no values."""
    return values.sum() / max(len(values), 1)
