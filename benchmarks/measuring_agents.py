"""Agents that measure placements until a memory has as many as it may, as studies run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy

from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv, StepwisePlacementEnv
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement

if TYPE_CHECKING:
    from drlpp.agents import AgentHyperparameters

MeasuringAgent = Callable[[MeasurementMemory, CostPrior, int, int], None]
"""Of the memory, what is declared, the budget of distinct placements, and the seed."""

_PATIENCE = 200
"""An agent has settled if it asks for this many known placements in a row."""

_REQUESTS = 200
"""How many times more placements an agent may ask for than it may measure: only a bound."""


def measured_by(memory: MeasurementMemory) -> Callable[[Placement], float]:
    """Return what measures a placement's seconds per minibatch, infinite if that fails."""

    def measured(placement: Placement) -> float:
        outcome, _ = memory.measure(placement)
        return outcome.seconds_per_minibatch if isinstance(outcome, Measurement) else numpy.inf

    return measured


def learn(
    hyperparameters: AgentHyperparameters,
    env: PlacementEnv,
    memory: MeasurementMemory,
    budget: int,
    seed: int,
) -> None:
    """Let one of drlpp's agents learn in an environment that measures into the memory."""
    from drlpp.agents import MeasurementBudgetCallback

    agent = hyperparameters.build(env, seed=seed)
    callback = MeasurementBudgetCallback(memory, budget, patience=_PATIENCE)
    agent.learn(_REQUESTS * budget, callback)


def maskable_ppo(memory: MeasurementMemory, declared: CostPrior, budget: int, seed: int) -> None:
    """Let sb3-contrib's PPO with masks learn to place one operator after the other."""
    from sb3_contrib import MaskablePPO

    from drlpp.agents import MeasurementBudgetCallback

    env = StepwisePlacementEnv(memory, declared=declared)
    decisions = len(env.graph) + env.accelerators
    agent = MaskablePPO(
        "MlpPolicy", env, n_steps=8 * decisions, batch_size=2 * decisions, gamma=1.0, seed=seed
    )
    callback = MeasurementBudgetCallback(memory, budget, patience=_PATIENCE * decisions)
    agent.learn(_REQUESTS * budget * decisions, callback)
