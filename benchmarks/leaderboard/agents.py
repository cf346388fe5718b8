"""Who takes part: a function that measures placements until a memory has as many as it may.

``agent(memory, declared, budget, seed)``, or somebody's own by an import path. Environments are
made of the memory: ``PlacementEnv(memory, declared=declared)``, ``StepwisePlacementEnv(…)``.
"""

from __future__ import annotations

import importlib
from functools import partial

from benchmarks.measuring_agents import MeasuringAgent, learn, maskable_ppo, measured_by
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.errors import InvalidInput
from drlpp.planners import PLANNERS, plan
from drlpp.planners.search.evolution import evolve
from drlpp.planners.search.random_search import random_run


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
    search = random_run if random else evolve
    search(declared.problem.with_seed(seed), budget, measured_by(memory))


def _learn(
    name: str, memory: MeasurementMemory, declared: CostPrior, budget: int, seed: int
) -> None:
    from drlpp.agents import AGENTS

    env = PlacementEnv(memory, declared=declared, budget=budget)
    learn(AGENTS[name], env, memory, budget, seed)


AGENTS: dict[str, MeasuringAgent] = {
    "guided": partial(_learn, "guided"),
    "drl-pp": partial(_learn, "drl-pp"),
    "maskable-ppo": maskable_ppo,
    "evolution": partial(_search, False),
    "random": partial(_search, True),
    "exact": partial(_planner, "exact"),
    "planners": _planners,
}


def find_agent(name: str) -> MeasuringAgent:
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
    agent: MeasuringAgent = found
    return agent
