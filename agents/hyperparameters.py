"""Hyperparameters for runs that can afford 50 to 300 measured placements."""

from __future__ import annotations

from typing import Any, Literal

from stable_baselines3.common.type_aliases import GymEnv

from drlpp.agents.algorithm import DRLPP
from drlpp.files import Record


class Hyperparameters(Record):
    """What an agent is built with; :class:`DRLPP` explains every field.

    The defaults are the agent of the paper, with its numbers where it gives any (drl-pp §4.2).
    """

    learning_rate: float = 1e-3
    partitions_per_rollout: int = 8
    placements_per_partition: int = 4
    n_epochs: int = 4
    clip_range: float = 0.2
    ent_coef: float = 0.01
    scheduler_ent_coef: float = 0.01
    advantage_clip: float = 3.0
    baseline_decay: float = 0.5
    max_grad_norm: float = 0.5
    imitation_coef: float = 0.0
    elites: int = 8
    temperature: float | Literal["auto"] = "auto"
    feasible: bool = False

    def build(self, env: GymEnv, **options: Any) -> DRLPP:
        """An agent for ``env``; ``options`` are further arguments of :class:`DRLPP`."""
        arguments = self.model_dump(exclude={"temperature", "feasible"})
        policy_kwargs = {"temperature": self.temperature, "feasible": self.feasible}
        return DRLPP("PlacementPolicy", env, **arguments, policy_kwargs=policy_kwargs, **options)


AGENTS: dict[str, Hyperparameters] = {
    "drl-pp": Hyperparameters(),
    "tuned": Hyperparameters(
        learning_rate=2e-3,
        partitions_per_rollout=4,
        placements_per_partition=2,
        n_epochs=8,
        imitation_coef=0.5,
        feasible=True,
    ),
}
"""Agents by name: the paper's, and one for small budgets.

``tuned`` has small rollouts, so that there are many updates; self-imitation, so that a good
placement is refined instead of found again; and a feasible scheduler, which spends no placement
on what cannot run.
"""
