"""What the agent has sampled, what came of it, and what that is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from drlpp.agents.paper.walk import PartitionWalk
from drlpp.envs.placement_env import INVALID

SMALLEST_SPREAD = 0.02
"""Standard deviation of −ln(seconds) below which differences are taken for noise: 2%."""


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
    """A trajectory after its step.

    ``error_type`` is the environment's, or ``None`` for a placement that was measured.
    """

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


def best_of(candidates: Iterable[Rewarded], count: int) -> list[Rewarded]:
    """Return the ``count`` best distinct measured placements, the earliest of equals."""
    distinct: dict[bytes, Rewarded] = {}
    for rewarded in candidates:
        if rewarded.measured:
            distinct.setdefault(rewarded.trajectory.action.tobytes(), rewarded)
    return sorted(distinct.values(), key=lambda rewarded: -rewarded.reward)[:count]


class StageBaselines:
    """What placements with as many stages were rewarded with, on average and at best.

    Most random cuts are worse than none, so against one average for all, the first thing that a
    policy learns is never to cut, and then it sees no cut any more. Here a placement is compared
    with those of as many stages. The number of stages itself is rewarded by the best that each
    number has shown so far, not by its average, since the average only says how badly it was cut.

    Args:
        decay: weight of the past in the averages; 0 is the rollout's own average.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._average: dict[int, float] = {}
        self._best: dict[int, float] = {}

    def update(self, content: Sequence[Rewarded]) -> None:
        """Take the measured placements of a rollout into account; penalties stay out."""
        rewards: dict[int, list[float]] = {}
        for rewarded in content:
            if rewarded.measured:
                rewards.setdefault(rewarded.trajectory.walk.stages, []).append(rewarded.reward)
        for stages, found in rewards.items():
            average = float(np.mean(found))
            past = self._average.get(stages, average)
            self._average[stages] = self.decay * past + (1 - self.decay) * average
            self._best[stages] = max(self._best.get(stages, -np.inf), *found)

    def averages(self, stages: Sequence[int]) -> NDArray[np.float64]:
        """Return the average reward of each number of stages.

        Where nothing with as many was ever measured, it is that of all numbers.
        """
        return _looked_up(self._average, stages)

    def standings(self, stages: Sequence[int]) -> NDArray[np.float64]:
        """Return how much better the best with as many stages is than that of the others here."""
        best = _looked_up(self._best, stages)
        return best - best.mean() if len(best) else best


def _looked_up(values: dict[int, float], stages: Sequence[int]) -> NDArray[np.float64]:
    usual = float(np.mean(list(values.values()) or [0.0]))
    return np.array([values.get(count, usual) for count in stages])
