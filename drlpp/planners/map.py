"""The map: which way of training is predicted to reach a loss first, over R_w and R_m.

R_w says how slow links are, and R_m how much memory is missing
(:class:`~drlpp.costs.ways_of_training.WaysOfTraining`). Links and memories of the user's own
cluster are scaled until both have the values of a cell. The user's own is one of the cells::

    R_m   6 │ pipeline  pipeline  pipeline
        1.5 │ fsdp      pipeline  pipeline
        0.5 │ ddp      [ddp]      pipeline
            └──────────────────────────────
              0.1       0.3       3     R_w

Pipelines have the placements that were proposed for the user's own cluster, so a plan for another
cell may well be faster there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from drlpp.costs.profile import Profile
from drlpp.costs.ways_of_training import WaysOfTraining
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.plan import Plan
from drlpp.planners.problem import PlanningProblem
from drlpp.schedule.analysis.staleness import samples_factor
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC
from drlpp.simulator import Simulation, simulate

PIPELINE, FLUSHED = "pipeline", "flushed"

_WEIGHTS_RATIOS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_MEMORY_RATIOS = (0.5, 1.5, 3.0, 6.0)

_MOST_PLACEMENTS = 6


@dataclass(frozen=True)
class Cell:
    """What wins where links and memory are so.

    Attributes:
        weights_ratio: R_w.
        memory_ratio: R_m; 0 where memory is not limited.
        way: a name of :data:`~drlpp.costs.ways_of_training.WAYS`, or one of pipelines; none fits
            if it is empty.
        seconds: of a minibatch, times the samples that it takes to the same loss, for each of plain
            PyTorch.
        own: whether it is the user's own cluster.
        candidate: the pipeline, if it is one.
    """

    weights_ratio: float
    memory_ratio: float
    way: str
    seconds: float
    own: bool
    candidate: Candidate | None = None


def map_of_ways(plan: Plan, problem: PlanningProblem, profile: Profile) -> tuple[Cell, ...]:
    """Return the cells in rows of one R_m, those of the smallest R_m first; none without links.

    Args:
        plan: for the user's own cluster, with what else was proposed.
        problem: that it is a plan of.
        profile: of the model's operators.
    """
    batch_size, kinds = profile.batch_size, {one.type for one in profile.graph.operators}
    own = ways_of_training(problem, batch_size)
    if not own.weights_ratio:
        return ()
    limited = _limited(problem, own.plain.memory_bytes)
    basis = ways_of_training(limited, batch_size).memory_ratio
    several = 2 * problem.cluster.accelerators
    # As in a search: where batches are normalised, that of a microbatch would be another.
    divides = batch_size % several == 0 and "batch_norm" not in kinds
    numbers = (1, several) if divides else (1,)
    cells = []
    for column in _with(_WEIGHTS_RATIOS, own.weights_ratio):
        links = own.weights_ratio / column
        pipelines = list(_pipelines(plan, _scaled(problem, links, 1.0), numbers))
        for row in _with(_MEMORY_RATIOS, own.memory_ratio):
            there = _scaled(limited, links, basis / row) if row else _scaled(problem, links, 1.0)
            ways = {
                one.name: one.seconds_to_loss
                for one in ways_of_training(there, batch_size).best()
                if one.fits
            }
            found: dict[str, Candidate] = {}
            for name, seconds, played in pipelines:
                fits = played.without_room(there.cluster) is None
                if fits and seconds < ways.get(name, math.inf):
                    ways[name], found[name] = seconds, Candidate(played.placement, played.method)
            # Of equals the first, which is the simplest.
            way = min(ways, key=lambda name: float(f"{ways[name]:.3g}"), default="")
            is_own = (column, row) == (own.weights_ratio, own.memory_ratio)
            seconds = ways.get(way, math.inf)
            cells.append(Cell(column, row, way, seconds, is_own, found.get(way)))
    return tuple(cells)


def ways_of_training(problem: PlanningProblem, batch_size: int) -> WaysOfTraining:
    """Return what the same would take without a pipeline."""
    return WaysOfTraining(problem.workload, problem.cluster, problem.memory, batch_size)


def _with(ratios: Sequence[float], own: float) -> list[float]:
    """Return the ratios with one's own in the place of the nearest."""
    nearest = min(ratios, key=lambda ratio: abs(math.log(ratio / (own or ratios[0]))))
    return [own if ratio == nearest else ratio for ratio in ratios]


def _limited(problem: PlanningProblem, bytes_: float) -> PlanningProblem:
    """Return the problem with so much memory where it is not limited."""
    hosts = [
        host if host.memory_bytes else host.model_copy(update={"memory_bytes": bytes_})
        for host in problem.cluster.hosts
    ]
    return replace(problem, cluster=problem.cluster.with_hosts(hosts))


def _scaled(problem: PlanningProblem, links: float, memory: float) -> PlanningProblem:
    return replace(problem, cluster=problem.cluster.scaled(links, memory))


def _pipelines(
    plan: Plan, problem: PlanningProblem, numbers: Sequence[int]
) -> Iterator[tuple[str, float, Simulation]]:
    """Yield the seconds to a loss of what was proposed, for each of plain PyTorch's minibatches.

    Methods are the plan's and a flushed one, each with these numbers of microbatches, and with
    recomputation; those that make an update of several minibatches do not count.
    """
    proposed = [one.placement for one in (plan, *plan.others) if len(one.placement.stages) > 1]
    flushed = Method(schedule=FLUSHED_1F1B.name, policy=SYNC.name)
    methods = [plan.method] + [
        method.model_copy(update={"microbatches": microbatches, "recompute": recompute})
        for method in (plan.method.model_copy(update={"in_flight_per_link": 0}), flushed)
        for microbatches in numbers
        for recompute in (False, True)
    ]
    for placement in list(dict.fromkeys(proposed))[:_MOST_PLACEMENTS]:
        for method in dict.fromkeys(methods):
            workload = problem.workload.with_method(method)
            memory = replace(problem.memory, method=method)
            with suppress(InvalidInput):
                played = simulate(workload, problem.cluster, placement, method, memory=memory)
                ExecutionPlan(Candidate(placement, method), played.pipeline)
                if method.minibatches_together(played.pipeline) > 1:
                    continue
                seconds = played.seconds_per_minibatch * samples_factor(
                    played.pipeline, method, problem.optimizer
                )
                yield FLUSHED if method.flushes else PIPELINE, seconds, played
