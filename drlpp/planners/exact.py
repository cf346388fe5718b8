"""The exact planner: the fastest of all placements whose stages are chains of downsets.

Branches may become stages side by side, stages may be replicated, accelerators may differ in speed
and memory, and memory may be limited. Operators that cost nothing are joined with their neighbours
first, which loses nothing (:mod:`drlpp.planners.contraction`). Then downsets are counted; if the
stages between them are few enough to look at each, the optimum is found and proven.

If they are too many, the same program runs over the downsets of many topological orders, and the
lower bound is an honest one: no accelerator is faster than all of them sharing the work evenly,
and no placement than its most expensive operator. A cluster with links of several levels is planned
as if all were the slowest, and as if all were the fastest, which gives the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy

from drlpp.cluster import Link
from drlpp.cost_model import StageSeconds
from drlpp.errors import NothingFits
from drlpp.placement import Placement, Stage
from drlpp.planners.chain_search import Chain, chain_search
from drlpp.planners.contraction import Contraction, contract_free_operators
from drlpp.planners.downsets import all_downsets, count_downsets, some_downsets
from drlpp.planners.fleet import Fleet
from drlpp.planners.problem import PlanningProblem, Solution, memory_shortage
from drlpp.planners.stage_pairs import StagePairs
from drlpp.workload import Workload

MOST_DOWNSETS = 6_000
"""So many are looked at; the stages between them grow with the square."""

MOST_COSTS = 120_000_000
"""Costs of stages on groups of accelerators that are kept in memory, 8 bytes each."""


@dataclass(frozen=True)
class Tractability:
    """What the exact planner would have to look at.

    Attributes:
        operators: of the workload.
        contracted: operators that are left when those that cost nothing are joined.
        downsets: of these; None if there are too many to count.
        tractable: whether all are looked at.
    """

    operators: int
    contracted: int
    downsets: int | None
    tractable: bool


def tractability(workload: Workload) -> Tractability:
    """Count downsets without enumerating them."""
    contracted = contract_free_operators(workload).workload
    downsets = count_downsets(contracted)
    return Tractability(
        operators=len(workload),
        contracted=len(contracted),
        downsets=downsets,
        tractable=downsets is not None and downsets <= MOST_DOWNSETS,
    )


def exact(problem: PlanningProblem) -> Solution:
    """Find the fastest placement by the problem's rule, and prove it where that is possible.

    Raises:
        NothingFits: if no placement that was looked at fits into memory.
    """
    contraction = contract_free_operators(problem.workload)
    workload = contraction.workload
    count = count_downsets(workload)
    complete = count is not None and count <= MOST_DOWNSETS
    levels = problem.cluster.levels
    fleets = [Fleet(problem.cluster, link, problem.replicate) for link in _extremes(levels)]
    pairs = StagePairs.of(workload, all_downsets(workload)) if complete else None
    most = MOST_COSTS / len({fleets[0].group(counts) for counts in fleets[0].choices})
    if pairs is None or len(pairs) > most:
        complete = False
        # Of n downsets no more than n²/2 pairs are nested.
        sample = min(int((2 * most) ** 0.5), MOST_DOWNSETS // 3)
        pairs = StagePairs.of(workload, some_downsets(workload, sample, problem.seed))

    plans, bound = [], _simple_bound(problem, workload, fleets[0])
    for fleet in fleets:
        chain = chain_search(pairs, fleet, problem.costs, problem.memory).fastest(bound)
        if chain is None:
            raise _nothing_fits(problem, contraction, pairs, fleet)
        if complete and fleet is fleets[0]:
            bound = max(bound, chain.seconds)
        plans.append(_placement(contraction, pairs, fleet, chain))
    predictions = [problem.predict(plan) for plan in plans]
    seconds, best = min(
        (prediction.seconds_per_minibatch, number) for number, prediction in enumerate(predictions)
    )
    counted = "too many to count" if count is None else f"{count}"
    return Solution(
        placement=plans[best],
        lower_bound=min(bound, seconds),
        proven_optimal=seconds <= bound * (1 + 1e-9),
        note=f"{len(workload)} of {len(problem.workload)} operators cost something; downsets: "
        f"{counted}, looked at {len(pairs.downsets)}",
    )


def _extremes(levels: tuple[Link, ...]) -> list[Link]:
    """The fastest link, and the slowest if it is another."""
    by_bandwidth = sorted(levels, key=lambda link: -link.bandwidth_bytes_per_second)
    fastest = Link(
        bandwidth_bytes_per_second=by_bandwidth[0].bandwidth_bytes_per_second,
        latency_seconds=min(link.latency_seconds for link in levels),
    )
    slowest = levels[0]
    for link in levels[1:]:
        slowest = slowest.slower(link)
    return [fastest] if slowest == fastest else [fastest, slowest]


def _placement(
    contraction: Contraction, pairs: StagePairs, fleet: Fleet, chain: Chain
) -> Placement:
    stages = []
    for number, accelerators in zip(
        chain.stages, fleet.hand_out(list(chain.accelerators)), strict=True
    ):
        inside = pairs.downsets[pairs.end[number]] & ~pairs.downsets[pairs.begin[number]]
        operators = [
            member for group in numpy.flatnonzero(inside) for member in contraction.members[group]
        ]
        stages.append(Stage(operators=tuple(sorted(operators)), accelerators=accelerators))
    return Placement(stages=tuple(stages))


def _simple_bound(problem: PlanningProblem, workload: Workload, fleet: Fleet) -> float:
    """What no placement can beat: all work shared evenly, and the most expensive operator."""
    work = workload.seconds + workload.update_seconds
    even = float(work.sum()) / sum(problem.cluster.speeds)
    zero = numpy.zeros(len(workload))
    alone = workload.work_of(
        seconds=workload.seconds,
        update_seconds=workload.update_seconds,
        parameter_bytes=workload.parameter_bytes,
        kept_bytes=workload.kept_bytes,
        incoming_bytes=zero,
        outgoing_bytes=zero,
        last=numpy.ones(len(workload), dtype=bool),
    )
    groups = {fleet.group(counts) for counts in fleet.choices}
    fastest = numpy.full(len(workload), numpy.inf)
    for group in groups:
        total = StageSeconds.of(alone, group, problem.costs).total(problem.costs)
        fastest = numpy.minimum(fastest, total)
    return max(even, float(fastest.max()))


def _nothing_fits(
    problem: PlanningProblem, contraction: Contraction, pairs: StagePairs, fleet: Fleet
) -> NothingFits:
    """Say which stage of the placement that comes closest misses how much."""
    low, high = 0.0, max(limit or 0.0 for limit in problem.cluster.memory_bytes)

    def closest(extra: float) -> Chain | None:
        larger = replace(fleet, extra_bytes=extra)
        return chain_search(pairs, larger, problem.costs, problem.memory).within(numpy.inf)

    while (chain := closest(high)) is None:
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        found = closest(middle)
        if found is None:
            low = middle
        else:
            chain, high = found, middle
    placement = _placement(contraction, pairs, fleet, chain)
    return memory_shortage(problem, placement)
