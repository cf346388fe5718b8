"""Who takes part: a function that measures placements until a memory has as many as it may.

``agent(memory, declared, budget, seed)``, or somebody's own by an import path. Environments are
made of the memory: ``PlacementEnv(memory, declared=declared)``, ``StepwisePlacementEnv(…)``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial

import numpy

from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv, StepwisePlacementEnv
from drlpp.errors import InvalidInput
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, plan
from drlpp.planners.search.evolution import evolve
from drlpp.planners.search.random_search import random_run

Agent = Callable[[MeasurementMemory, CostPrior, int, int], None]

_PATIENCE = 200
"""An agent has settled if it asks for this many known placements in a row."""

_REQUESTS = 200
"""How many times more placements an agent may ask for than it may measure: only a bound."""


def _planner(name: str, memory: MeasurementMemory, declared: CostPrior, _: int, seed: int) -> None:
    """Measure the one placement that a planner finds."""
    memory.measure(plan(name, declared.problem.with_seed(seed)).placement)


def _planners(memory: MeasurementMemory, declared: CostPrior, budget: int, seed: int) -> None:
    """Measure what every planner finds, as far as the budget goes."""
    for name in PLANNERS:
        if name != "non-contiguous" and memory.distinct < budget:
            _planner(name, memory, declared, budget, seed)


def _search(
    random: bool, memory: MeasurementMemory, declared: CostPrior, budget: int, seed: int
) -> None:
    def measured(placement: Placement) -> float:
        outcome, _ = memory.measure(placement)
        return outcome.seconds_per_minibatch if isinstance(outcome, Measurement) else numpy.inf

    search = random_run if random else evolve
    search(declared.problem.with_seed(seed), budget, measured)


def _learn(
    name: str, memory: MeasurementMemory, declared: CostPrior, budget: int, seed: int
) -> None:
    from drlpp.agents import AGENTS, MeasurementBudgetCallback

    agent = AGENTS[name].build(PlacementEnv(memory, declared=declared, budget=budget), seed=seed)
    agent.learn(_REQUESTS * budget, MeasurementBudgetCallback(memory, budget, patience=_PATIENCE))


def _maskable_ppo(memory: MeasurementMemory, declared: CostPrior, budget: int, seed: int) -> None:
    from sb3_contrib import MaskablePPO

    from drlpp.agents import MeasurementBudgetCallback

    env = StepwisePlacementEnv(memory, declared=declared)
    decisions = len(env.graph) + env.accelerators
    agent = MaskablePPO(
        "MlpPolicy", env, n_steps=8 * decisions, batch_size=2 * decisions, gamma=1.0, seed=seed
    )
    callback = MeasurementBudgetCallback(memory, budget, patience=_PATIENCE * decisions)
    agent.learn(_REQUESTS * budget * decisions, callback)


AGENTS: dict[str, Agent] = {
    "guided": partial(_learn, "guided"),
    "drl-pp": partial(_learn, "drl-pp"),
    "maskable-ppo": _maskable_ppo,
    "evolution": partial(_search, False),
    "random": partial(_search, True),
    "exact": partial(_planner, "exact"),
    "planners": _planners,
}


def find_agent(name: str) -> Agent:
    """Return an agent by its name, or by ``package.module:function``.

    Raises:
        InvalidInput: there is none.
    """
    if name in AGENTS:
        return AGENTS[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise InvalidInput(
            f"agent {name!r} is unknown; there are {', '.join(AGENTS)}, or yours as "
            "package.module:function"
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"agent {name!r}: {error}") from None
    agent: Agent = found
    return agent
