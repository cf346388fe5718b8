"""Everything that looks for a fast placement by measuring: agents, and searches that do not learn.

A method is given what is declared and a memory, and measures until as many distinct placements as
it may have been measured. What it found is read from the memory, in the order of measuring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy
import torch

from benchmarks.agent_study.instance import Instance
from benchmarks.measuring_agents import MeasuringAgent, learn, maskable_ppo, measured_by
from drlpp.envs import CostPrior, MeasurementMemory, PlacementEnv
from drlpp.placement.measurement import Measurement
from drlpp.planners import PLANNERS
from drlpp.planners.model_based.recalibration import Recalibration
from drlpp.planners.problem.objective import Objective
from drlpp.planners.search.evaluations import SearchRun
from drlpp.planners.search.evolution import evolve
from drlpp.planners.search.local_search import anneal
from drlpp.planners.search.random_search import random_run


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
    # Accelerators that are declared to be equal may differ, so they are worth swapping.
    cluster = declared.problem.cluster
    apart = cluster.with_speeds(cluster.speeds)
    problem = replace(declared.problem.with_seed(seed), cluster=apart)
    start = [[PLANNERS["exact"](problem).placement]] if planned else []
    search(problem, budget, measured_by(memory), *start)


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


def _learn(
    name: str,
    memory: MeasurementMemory,
    declared: CostPrior,
    budget: int,
    seed: int,
    without: str | None = None,
) -> None:
    from drlpp.agents import AGENTS

    switches = {without: False} if without else {}
    env = PlacementEnv(memory, declared=declared)
    learn(AGENTS[name].model_copy(update=switches), env, memory, budget, seed)


def variant(name: str) -> MeasuringAgent:
    """Return ``guided-policy without PART``: the guided agent with a switch off."""
    agent, _, part = name.partition(" without ")
    return partial(_learn, agent, without=part)


METHODS: dict[str, MeasuringAgent] = {
    "guided-policy": partial(_learn, "guided-policy"),
    "drl-pp": partial(_learn, "drl-pp"),
    "maskable-ppo": maskable_ppo,
    "recalibrate": recalibrate,
    "planned-evolution": partial(_search, evolve, planned=True),
    "evolution": partial(_search, evolve),
    "annealing": partial(_search, anneal),
    "random": partial(_search, random_run),
}
"""As ``--agent`` names them. ``planned-evolution`` starts from the exact planner's placement."""


def history_of(method: MeasuringAgent, instance: Instance, budget: int, seed: int) -> list[float]:
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
