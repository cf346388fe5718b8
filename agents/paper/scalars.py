"""What agents log, under the names that stable-baselines3's users know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

from drlpp.agents.paper.trajectory import TrajectoryBuffer
from drlpp.agents.paper.update import Update


class Totals(NamedTuple):
    """The memories of all environments together."""

    distinct: int
    failed: int
    best_seconds: float | None

    @classmethod
    def of(cls, env: VecEnv) -> Totals:
        """Read the totals as they are now."""
        summaries = env.get_attr("summary")
        best = [s.best_seconds for s in summaries if s.best_seconds is not None]
        return cls(
            sum(summary.distinct for summary in summaries),
            sum(summary.failed for summary in summaries),
            min(best, default=None),
        )


def log_totals(logger: Logger, before: Totals, after: Totals, steps: int) -> None:
    """Log the totals of all measurements, and the share of new ones among the last ``steps``."""
    if after.best_seconds is not None:
        logger.record("placement/best_seconds", after.best_seconds)
    logger.record("placement/distinct", after.distinct)
    logger.record("placement/failed", after.failed)
    logger.record("placement/new_share", (after.distinct - before.distinct) / max(steps, 1))


def log_rollout(logger: Logger, rollout: TrajectoryBuffer, baseline: float | None) -> None:
    """Log the placements that the policy has sampled in a rollout."""
    measured = rollout.measured_rewards
    if len(measured):
        logger.record("placement/mean_reward", float(measured.mean()))
        stages = [r.trajectory.walk.stages for r in rollout.content if r.measured]
        logger.record("placement/mean_stages", float(np.mean(stages)))
    if baseline is not None:
        logger.record("placement/baseline", baseline)
    invalid = [rewarded.invalid for rewarded in rollout.content]
    logger.record("placement/invalid_share", float(np.mean(invalid)))
    different = {rewarded.trajectory.action.tobytes() for rewarded in rollout.content}
    logger.record("placement/distinct_share", len(different) / len(rollout.content))


def log_updates(
    logger: Logger, updates: Sequence[Update], losses: Sequence[float], clip_range: float
) -> None:
    """Log the passes over a rollout."""
    partitioner = np.mean([update.partitioner_entropy.item() for update in updates])
    scheduler = np.mean([update.scheduler_entropy.item() for update in updates])
    gradient_losses = [update.policy_gradient_loss.item() for update in updates]
    logger.record("train/entropy_loss", float(-partitioner - scheduler))
    logger.record("train/partitioner_entropy", float(partitioner))
    logger.record("train/scheduler_entropy", float(scheduler))
    logger.record("train/policy_gradient_loss", float(np.mean(gradient_losses)))
    logger.record("train/approx_kl", float(np.mean([update.approx_kl for update in updates])))
    logger.record("train/clip_fraction", float(np.mean([u.clip_fraction for u in updates])))
    logger.record("train/loss", losses[-1])
    logger.record("train/clip_range", clip_range)
