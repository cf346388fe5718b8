"""What agents log, under the names that stable-baselines3's users know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from drlpp.agents.paper.rollout import TrajectoryBuffer
from drlpp.agents.paper.update import Update
from drlpp.envs import MemorySummary


def totals_of(env: VecEnv) -> MemorySummary:
    """Return the counts of the memories of all environments together."""
    summaries: list[MemorySummary] = env.get_attr("summary")
    return MemorySummary(
        sum(summary.distinct for summary in summaries),
        sum(summary.failed for summary in summaries),
        min((s.best_seconds for s in summaries if s.best_seconds is not None), default=None),
    )


def log_totals(logger: Logger, before: MemorySummary, after: MemorySummary, steps: int) -> None:
    """Log the totals of all measurements, and the share of new ones among the last ``steps``."""
    if after.best_seconds is not None:
        logger.record("placement/best_seconds", after.best_seconds)
    logger.record("placement/distinct", after.distinct)
    logger.record("placement/failed", after.failed)
    logger.record("placement/new_share", (after.distinct - before.distinct) / max(steps, 1))


def log_rollout(logger: Logger, rollout: TrajectoryBuffer, baseline: float | None) -> None:
    """Log the placements that the policy has sampled in a rollout."""
    measured = [rewarded for rewarded in rollout.content if rewarded.measured]
    if measured:
        stages = [rewarded.trajectory.walk.stages for rewarded in measured]
        logger.record("placement/mean_reward", float(rollout.measured_rewards.mean()))
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
    means = {
        name: float(np.mean([v.item() if isinstance(v, Tensor) else v for v in values]))
        for name, values in zip(Update._fields, zip(*updates, strict=True), strict=True)
    }
    for name, value in means.items():
        logger.record(f"train/{name}", value)
    entropies = means["partitioner_entropy"] + means["scheduler_entropy"]
    logger.record("train/entropy_loss", -entropies)
    logger.record("train/loss", losses[-1])
    logger.record("train/clip_range", clip_range)
