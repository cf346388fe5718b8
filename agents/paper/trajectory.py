"""What the agent has sampled and what came of it, kept until the next update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from drlpp.agents.paper.walk import PartitionWalk
from drlpp.envs import ActionCodec


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
    def choices(self) -> tuple[int, ...]:
        """What was chosen for the partitions, in the order of ``log_probs``."""
        return self.stage_of_accelerator

    @property
    def action(self) -> NDArray[np.int64]:
        """The action of ``PlacementEnv``."""
        return ActionCodec.join(self.walk.stage_of_operator, self.choices)


@dataclass(frozen=True, slots=True)
class MethodTrajectory(Trajectory):
    """A trajectory of a policy that chooses the method, too; ``log_probs`` has these choices last.

    Attributes:
        methods: the number of the method of every partition, or one of all.
    """

    methods: tuple[int, ...]

    @property
    def choices(self) -> tuple[int, ...]:
        """What was chosen for the partitions, in the order of ``log_probs``."""
        return self.stage_of_accelerator + self.methods


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
        return self.error_type == "invalid placement"


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

    def add(self, rewarded: Rewarded) -> None:
        """Add a trajectory whose placement has been measured."""
        self.content.append(rewarded)

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
        walks = {
            id(rewarded.trajectory.walk): rewarded.trajectory.walk for rewarded in self.content
        }
        found = Counter(
            id(rewarded.trajectory.walk) for rewarded in self.content if not rewarded.invalid
        )
        return [walk for key, walk in walks.items() for _ in range(placements - found[key])]

    def partition_rewards(self) -> tuple[list[PartitionWalk], NDArray[np.float64]]:
        """Return every partition scheme with the mean reward of its placements (§3.4).

        Placements that failed when they ran count with their penalty. Those that left a partition
        without an accelerator do not: the paper penalises the scheduler for them and evaluates
        "all valid placements". A scheme without any valid placement is left out.
        """
        rewards: dict[int, list[float]] = {}
        walks: dict[int, PartitionWalk] = {}
        for rewarded in self.content:
            if not rewarded.invalid:
                walk = rewarded.trajectory.walk
                walks[id(walk)] = walk
                rewards.setdefault(id(walk), []).append(rewarded.reward)
        means = np.array([np.mean(values) for values in rewards.values()])
        return list(walks.values()), means


def best_of(candidates: Iterable[Rewarded], count: int) -> list[Rewarded]:
    """Return the ``count`` best distinct measured placements, the earliest of equals."""
    distinct: dict[bytes, Rewarded] = {}
    for rewarded in candidates:
        if rewarded.measured:
            distinct.setdefault(rewarded.trajectory.action.tobytes(), rewarded)
    return sorted(distinct.values(), key=lambda rewarded: -rewarded.reward)[:count]
