"""Hyperparameters for runs that can afford 50 to 300 measured placements."""

from __future__ import annotations

from typing import Any, Literal

from stable_baselines3.common.type_aliases import GymEnv

from drlpp.agents.algorithm import DRLPP
from drlpp.files import Record


class Hyperparameters(Record):
    """What the main job trains with; :class:`DRLPP` explains every field.

    The defaults differ from the paper's where a small budget asks for it: small rollouts, so that
    there are many updates; self-imitation, which lets a good placement be refined instead of found
    again; and a feasible scheduler, which spends no placement on what cannot run.
    """

    learning_rate: float = 1e-3
    partitions_per_rollout: int = 8
    placements_per_partition: int = 1
    n_epochs: int = 4
    clip_range: float = 0.2
    ent_coef: float = 0.01
    scheduler_ent_coef: float = 0.01
    advantage_clip: float = 3.0
    baseline_decay: float = 0.5
    max_grad_norm: float = 0.5
    imitation_coef: float = 0.5
    elites: int = 8
    temperature: float | Literal["auto"] = "auto"
    feasible: bool = True

    def build(self, env: GymEnv, **options: Any) -> DRLPP:
        """An agent for ``env``; ``options`` are further arguments of :class:`DRLPP`."""
        arguments = self.model_dump(exclude={"temperature", "feasible"})
        policy_kwargs = {"temperature": self.temperature, "feasible": self.feasible}
        return DRLPP("PlacementPolicy", env, **arguments, policy_kwargs=policy_kwargs, **options)
