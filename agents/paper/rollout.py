"""What the agent has sampled, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from drlpp.agents.paper.walk import PartitionWalk
from drlpp.envs.placement_env import INVALID


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A partition scheme and one placement of it.

    Attributes:
        walk: the walk that made the partitions.
        stage_of_accelerator: the partition that every accelerator holds.
        log_probs: of every accelerator's choice.
    """

    walk: PartitionWalk
    stage_of_accelerator: tuple[int, ...]
    log_probs: tuple[float, ...]

    @property
    def action(self) -> NDArray[np.int64]:
        """The action of ``PlacementEnv``."""
        return np.array([*self.walk.stage_of_operator, *self.stage_of_accelerator])


@dataclass(frozen=True, slots=True)
class Rewarded:
    """A trajectory after its step; ``error_type`` is the environment's, None if it was measured."""

    trajectory: Trajectory
    reward: float
    error_type: str | None

    @property
    def measured(self) -> bool:
        """Whether the reward is −ln(seconds), not a penalty."""
        return self.error_type is None

    @property
    def invalid(self) -> bool:
        """Whether the placement could not be run at all."""
        return self.error_type == INVALID


@dataclass
class TrajectoryBuffer:
    """The trajectories of one rollout, in the order they were drawn.

    It stands where stable-baselines3's algorithms have their ``RolloutBuffer``; what it keeps
    beyond observations and actions is the order of the walk, without which log-probabilities
    could not be replayed.
    """

    content: list[Rewarded] = field(default_factory=list)

    def reset(self) -> None:
        """Forget everything."""
        self.content = []

    @property
    def rewards(self) -> NDArray[np.float64]:
        """R_{i,j} of every placement (drl-pp eq. 2), penalties included."""
        return np.array([rewarded.reward for rewarded in self.content])

    @property
    def measured_rewards(self) -> NDArray[np.float64]:
        """R_{i,j} of the placements that were measured."""
        return np.array([rewarded.reward for rewarded in self.content if rewarded.measured])

    def missing(self, placements: int) -> list[PartitionWalk]:
        """Return the schemes with fewer than ``placements`` that can run, once for each missing.

        Placements that failed when they ran count among those that can run, since they were
        evaluated.
        """
        return [
            placed[0].trajectory.walk
            for placed in _by_scheme(self.content)
            for _ in range(placements - sum(not rewarded.invalid for rewarded in placed))
        ]

    def partition_rewards(self) -> tuple[list[PartitionWalk], NDArray[np.float64]]:
        """Return every partition scheme with the mean reward of its placements (§3.4).

        Placements that failed when they ran count with their penalty. Those that left a partition
        without an accelerator do not: the paper penalises the scheduler for them and evaluates
        "all valid placements". A scheme without any valid placement is left out.
        """
        schemes = _by_scheme(rewarded for rewarded in self.content if not rewarded.invalid)
        means = np.array([np.mean([one.reward for one in placed]) for placed in schemes])
        return [placed[0].trajectory.walk for placed in schemes], means


def _by_scheme(content: Iterable[Rewarded]) -> list[list[Rewarded]]:
    """Group placements by their walk, in the order in which walks first appear."""
    schemes: dict[int, list[Rewarded]] = {}
    for rewarded in content:
        schemes.setdefault(id(rewarded.trajectory.walk), []).append(rewarded)
    return list(schemes.values())
