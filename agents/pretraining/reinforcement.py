"""Stage 2: sample placements, and make those likelier that the rule finds fast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray

from drlpp.agents.paper.trajectory import Trajectory
from drlpp.agents.paper.update import Batch, Update, evaluate_batch
from drlpp.agents.pretraining.problems import SolvedProblem
from drlpp.agents.transfer.context_batch import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork

SMALLEST_SPREAD = 0.03
"""Standard deviation of a problem's rewards below which differences are left small: 3%."""


@dataclass(frozen=True)
class Rollout:
    """Placements of several problems, as many of each.

    Attributes:
        batch: the problems' contexts.
        contexts: for every trajectory the index of its problem.
        trajectories: what was sampled.
        gaps: how much longer each takes than the optimum.
        advantages: −ln(seconds) above the mean of the same problem's, in standard deviations.
    """

    batch: ContextBatch
    contexts: list[int]
    trajectories: list[Trajectory]
    gaps: NDArray[numpy.float64]
    advantages: NDArray[numpy.float64]


def sample_rollout(
    network: TransferNetwork, problems: Sequence[SolvedProblem], placements: int
) -> Rollout:
    """Sample ``placements`` of every problem and evaluate them by the rule."""
    batch = ContextBatch.of([solved.context for solved in problems])
    contexts = [index for index in range(len(problems)) for _ in range(placements)]
    trajectories = network.sample(batch, contexts)
    gaps = numpy.array(
        [problems[i].gap(t) for i, t in zip(contexts, trajectories, strict=True)]
    ).reshape(len(problems), placements)
    rewards = -numpy.log1p(gaps)
    spread = numpy.maximum(rewards.std(axis=1, keepdims=True), SMALLEST_SPREAD)
    advantages = (rewards - rewards.mean(axis=1, keepdims=True)) / spread
    return Rollout(batch, contexts, trajectories, gaps.ravel(), advantages.ravel())


def evaluate_rollout(network: TransferNetwork, rollout: Rollout, clip_range: float) -> Update:
    """Compute PPO's objective on a rollout (:func:`~drlpp.agents.paper.update.evaluate_batch`)."""
    walks = [trajectory.walk for trajectory in rollout.trajectories]
    advantages = torch.from_numpy(rollout.advantages.astype(numpy.float32))
    evaluation = network.evaluate(
        rollout.batch, rollout.contexts, walks, rollout.contexts, rollout.trajectories
    )
    most = evaluation.scheduler_free.shape[1]
    padded = [
        Trajectory(
            t.walk, t.stage_of_accelerator, t.log_probs + (math.nan,) * (most - len(t.log_probs))
        )
        for t in rollout.trajectories
    ]
    return evaluate_batch(Batch(walks, advantages, padded, advantages), evaluation, clip_range)
