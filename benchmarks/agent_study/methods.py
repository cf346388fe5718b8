"""Everything that looks for a fast placement by measuring: agents, and searches that do not learn.

A method is given what is declared and a memory, and measures until as many distinct placements as
it may have been measured. What it found is read from the memory, in the order of measuring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy
import torch

from benchmarks.agent_study.instance import Instance
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv, StepwisePlacementEnv
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS
from drlpp.planners.model_based.recalibration import Recalibration
from drlpp.planners.problem.objective import Objective
from drlpp.planners.search.evaluations import SearchRun
from drlpp.planners.search.evolution import evolve
from drlpp.planners.search.local_search import anneal
from drlpp.planners.search.random_search import random_run

if TYPE_CHECKING:
    from drlpp.agents import AgentHyperparameters

Method = Callable[[MeasurementMemory, CostPrior, int, int], None]
"""Of the memory, what is declared, the budget of distinct placements, and the seed."""

_PATIENCE = 200
"""An agent has settled if it asks for this many known placements in a row."""

_REQUESTS = 200
"""How many times more placements an agent may ask for than it may measure: only a bound."""


def incumbents_of(memory: MeasurementMemory, seconds: Objective) -> list[float]:
    """Return, after each measurement, what the fastest by measurement really takes.

    It is infinite as long as there is none.
    """
    found, best, chosen = [], numpy.inf, numpy.inf
    for candidate, outcome in memory.outcomes.items():
        if isinstance(outcome, Measurement) and outcome.seconds_per_minibatch < best:
            best, chosen = outcome.seconds_per_minibatch, seconds(candidate.placement)
        found.append(chosen)
    return found


def _search(
    search: Callable[..., SearchRun],
    memory: MeasurementMemory,
    declared: CostPrior,
    budget: int,
    seed: int,
    planned: bool = False,
) -> None:
    def measured(placement: Placement) -> float:
        outcome, _ = memory.measure(placement)
        return outcome.seconds_per_minibatch if isinstance(outcome, Measurement) else numpy.inf

    # Accelerators that are declared to be equal may differ, so they are worth swapping.
    cluster = declared.problem.cluster
    apart = cluster.with_speeds(cluster.speeds)
    problem = replace(declared.problem.with_seed(seed), cluster=apart)
    if planned:
        search(problem, budget, measured, [PLANNERS["exact"](problem).placement])
    else:
        search(problem, budget, measured)


def recalibrate(memory: MeasurementMemory, declared: CostPrior, budget: int, seed: int) -> None:
    """Measure, recalibrate, plan again: one by one at first, then by four."""
    problem = declared.problem.with_seed(seed)
    search = Recalibration(problem, declared.space or declared.method)
    while memory.distinct < budget:
        count = 1 if memory.distinct < 8 else 4
        proposals = search.propose(min(count, budget - memory.distinct))
        if not proposals:
            return
        for candidate in proposals:
            search.tell(candidate, memory.measure(candidate)[0])


def _agent(
    name: str, memory: MeasurementMemory, declared: CostPrior, budget: int, seed: int
) -> None:
    from drlpp.agents import AGENTS

    _learn(AGENTS[name], memory, declared, budget, seed)


def _learn(
    hyperparameters: AgentHyperparameters,
    memory: MeasurementMemory,
    declared: CostPrior,
    budget: int,
    seed: int,
) -> None:
    from drlpp.agents import MeasurementBudgetCallback

    agent = hyperparameters.build(PlacementEnv(memory, declared=declared), seed=seed)
    callback = MeasurementBudgetCallback(memory, budget, patience=_PATIENCE)
    agent.learn(_REQUESTS * budget, callback)


def variant(name: str) -> Method:
    """Return ``guided without PART``: the guided agent with a switch off."""
    from drlpp.agents import AGENTS

    agent, _, part = name.partition(" without ")
    return partial(_learn, AGENTS[agent].model_copy(update={part: False}))


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


METHODS: dict[str, Method] = {
    "guided": partial(_agent, "guided"),
    "drl-pp": partial(_agent, "drl-pp"),
    "maskable-ppo": _maskable_ppo,
    "recalibrate": recalibrate,
    "planned-evolution": partial(_search, evolve, planned=True),
    "evolution": partial(_search, evolve),
    "annealing": partial(_search, anneal),
    "random": partial(_search, random_run),
}
"""As ``--agent`` names them. ``planned-evolution`` starts from the exact planner's placement."""


def history_of(method: Method, instance: Instance, budget: int, seed: int) -> list[float]:
    """Return the fastest seconds so far after each of up to ``budget`` distinct placements.

    It is chosen by what was measured, noise included, and judged without noise.
    """
    memory = instance.memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        method(memory, instance.declared, budget, seed)
    finally:
        torch.set_num_threads(threads)
    return incumbents_of(memory, instance.seconds)[:budget] or [numpy.inf]
