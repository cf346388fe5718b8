"""One agent learns to place one model in the simulator: what every step of it came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks import PROFILES
from drlpp.agents import hyperparameters_of
from drlpp.costs.files.pipedream_profile import read_pipedream_profile
from drlpp.costs.profile import Profile
from drlpp.costs.synthetic_profiles import generate
from drlpp.costs.workload import Workload
from drlpp.envs import MeasurementMemory, PlacementEnv
from drlpp.io.documents import Record, read_document
from drlpp.placement.measurement import Measurement
from drlpp.planners import PLANNERS, PlanningProblem
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Link, local_cluster

_PUBLIC = PROFILES.parents[1] / "tests" / "data" / "pipedream-profiles"

ACCELERATORS = 4


@dataclass(frozen=True)
class Model:
    """What is placed, on accelerators with links of so many bytes per second.

    ``title`` names it in tables and pictures.
    """

    title: str
    profile: Callable[[], Profile]
    bandwidth: float

    def measurer(self) -> SimulatedCluster:
        """Return four accelerators that it is placed on."""
        cluster = local_cluster(ACCELERATORS, Link(bandwidth_bytes_per_second=self.bandwidth))
        return SimulatedCluster(self.profile(), cluster)


MODELS = {
    "vgg16": Model(
        "VGG-16, 125 MB/s", lambda: read_document(PROFILES / "vgg16.json", Profile), 1.25e8
    ),
    "gnmt": Model("GNMT, 1.25 GB/s", lambda: read_pipedream_profile(_PUBLIC / "gnmt.txt"), 1.25e9),
    "blocks": Model("branching, 250 MB/s", lambda: generate("blocks", 40, seed=1), 2.5e8),
}
"""A chain of the zoo, a public profile, and a made-up model of blocks with branches."""


class Run(Record):
    """What an agent came to, with one entry for every training step.

    Attributes:
        model: its name.
        agent: the name of its hyperparameters.
        seed: of the agent.
        mean_rewards: of the measured placements of the step; None where there were none.
        draws: of placements in the step.
        invalid: how many of them left a partition without an accelerator.
        best_seconds: fewest seconds per minibatch of all placements.
        distinct: how many placements were measured.
    """

    model: str
    agent: str
    seed: int
    mean_rewards: tuple[float | None, ...]
    draws: tuple[int, ...]
    invalid: tuple[int, ...]
    best_seconds: float
    distinct: int

    @property
    def last_seconds(self) -> float:
        """Seconds per minibatch of what the policy draws at its end: the last 20 steps."""
        return float(np.exp(-np.mean([r for r in self.mean_rewards[-20:] if r is not None])))


class _Steps(BaseCallback):
    """Keeps what every step came to, and ends learning after ``count`` of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.mean_rewards: list[float | None] = []
        self.draws: list[int] = []
        self.invalid: list[int] = []

    def _on_step(self) -> bool:
        return len(self.draws) < self.count

    def _on_rollout_end(self) -> None:
        rollout = self.model.rollout_buffer  # type: ignore[attr-defined]
        measured = rollout.measured_rewards
        self.mean_rewards.append(float(measured.mean()) if len(measured) else None)
        self.draws.append(len(rollout.content))
        self.invalid.append(sum(one.invalid for one in rollout.content))


def run(model: str, agent: str, seed: int, steps: int) -> Run:
    """Let an agent learn for so many steps: rollouts, and updates on them."""
    memory = MeasurementMemory(MODELS[model].measurer())
    kept = _Steps(steps)
    hyperparameters_of(agent).build(PlacementEnv(memory), seed=seed).learn(10**9, callback=kept)
    best = memory.best()
    assert best is not None
    return Run(
        model=model,
        agent=agent,
        seed=seed,
        mean_rewards=tuple(kept.mean_rewards),
        draws=tuple(kept.draws),
        invalid=tuple(kept.invalid),
        best_seconds=best[1].seconds_per_minibatch,
        distinct=memory.distinct,
    )


def planned_seconds(model: str, planner: str) -> float:
    """Return the seconds per minibatch of a planner's placement, measured as the agents' are."""
    measurer = MODELS[model].measurer()
    problem = PlanningProblem(Workload.of(measurer.profile), measurer.cluster)
    outcome = measurer.measure(PLANNERS[planner](problem).placement)
    assert isinstance(outcome, Measurement)
    return outcome.seconds_per_minibatch
