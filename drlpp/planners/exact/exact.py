"""The exact planner: the fastest of all placements whose stages are chains of downsets.

Branches may become stages side by side, stages may be replicated, accelerators may differ in speed
and memory, and memory may be limited. Operators that cost nothing are joined with their neighbours
first, which loses nothing (:mod:`drlpp.planners.exact.contraction`). Then downsets are counted; if
the stages between them are few enough to look at each, the optimum is found and proven.

Where that is not so, the result is the best of what the same program finds in a smaller world and
of what other planners find (beyond 32 accelerators only data parallelism, GPipe's and PipeDream's),
and the lower bound is what holds nevertheless:

* too many downsets: those of many topological orders; no placement is faster than all accelerators
  sharing the work evenly, nor than its most expensive operator;
* copies of weights on several stages, where stages differ in replicas: as if each stage summed them
  for its own updates, and as if no stage did, which gives the bound;
* links of several levels: as if all were the slowest, and as if all were the fastest, which gives
  the bound;
* a memory limit, and branches: with as many minibatches in flight as if stages were in a row, and
  with one in flight on each, which gives the bound;
* too many kinds of accelerators: as if all were the slowest, or with some group sizes left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy

from drlpp.costs.stage_cost import StageSeconds
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.baselines.data_parallel import data_parallel
from drlpp.planners.baselines.gpipe import gpipe
from drlpp.planners.exact.chain_search import (
    ROUNDING,
    Chain,
    ChainSearch,
    EqualAccelerators,
)
from drlpp.planners.exact.contraction import Contraction, contract_free_operators
from drlpp.planners.exact.device_groups import Fleet
from drlpp.planners.exact.downsets import all_downsets, count_downsets, some_downsets
from drlpp.planners.exact.stage_pairs import Indices, StagePairs
from drlpp.planners.exact.unequal_accelerators import UnequalAccelerators
from drlpp.planners.pipedream.pipedream import pipedream
from drlpp.planners.problem.problem import PlanningProblem, memory_shortage
from drlpp.schedule.per_stage import most as largest_of
from drlpp.specs.cluster import Cluster, Host, Link

MOST_DOWNSETS = 6_000
"""The most downsets that are looked at; the stages between them grow with the square."""

_PRECISION = 1e-3
"""How far from the optimum of a world is near enough, where it proves nothing."""

MOST_COSTS = 120_000_000
"""Costs of stages on groups of accelerators that are kept in memory, 8 bytes each."""

_MOST_STATES = 2_000
_MOST_TRANSITIONS = 500_000
"""Ways to take accelerators of several kinds, and those times the groups of a stage."""

_OTHERS = (data_parallel, gpipe, pipedream)
"""What they find counts where nothing is proven."""


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


def exact(problem: PlanningProblem) -> Plan:
    """Find the fastest placement by the problem's rule, and prove it where that is possible.

    Raises:
        NothingFits: if no placement that was looked at fits into memory.
    """
    contraction = contract_free_operators(problem.workload)
    workload = contraction.workload
    count = count_downsets(workload)
    fastest, slowest = _extremes(problem.cluster)
    whole = Fleet(problem.cluster, fastest, problem.replicate)
    fleet = _affordable(whole)
    most = MOST_COSTS / len(fleet.groups)
    pairs = None
    if count is not None and count <= MOST_DOWNSETS:
        pairs = StagePairs.of(workload, all_downsets(workload))
    complete = fleet is whole and pairs is not None and len(pairs) <= most
    if pairs is None or len(pairs) > most:
        # Of n downsets no more than n²/2 pairs are nested.
        sample = min(int((2 * most) ** 0.5), MOST_DOWNSETS // 3)
        pairs = StagePairs.of(workload, some_downsets(workload, sample, problem.seed))
    if fleet.limits_memory:
        tight = _may_miss_memory(problem, pairs)
        pairs = pairs.with_working_bytes(problem.workload, contraction.members, tight)
    if len(pairs) > most:
        fleet = replace(fleet, most_choices=int(MOST_COSTS / len(pairs)))
    bound = _simple_bound(problem, workload, whole)

    plans, stopped = [], False
    found: list[Placement] = []
    if len(fleet.kinds) > 1:
        # A limit costs more to try than these planners take.
        found += _found_by_others(problem)
    _, known = _best(problem, found)
    deadline = time.monotonic() + problem.time_limit_seconds
    # What holds of all placements comes first.
    least = _with_fewest_sums(problem, workload, pairs)
    worlds = [(fastest, least), (slowest, least), (fastest, pairs)]
    for number, (link, stages) in enumerate(dict.fromkeys(worlds)):
        search = _chain_search(stages, replace(fleet, link=link), problem)
        proves = complete and not number
        chain = search.fastest(bound, deadline, known, 0.0 if proves else _PRECISION)
        stopped |= search.least is not None
        if chain is not None:
            plans.append(_placement(contraction, pairs, fleet, chain))
        if proves:
            bound = max(bound, _bound(problem, stages, fleet, search, chain))
    best, seconds = _best(problem, plans)
    doubts = [*_doubts(problem, complete, fleet, fastest != slowest, pairs)]
    if stopped:
        doubts.append(f"stopped after {problem.time_limit_seconds:g} s")
    elif complete and best is not None and seconds > bound * (1 + ROUNDING):
        doubts.append("a tensor that several stages read counts once in what is proven")
        if least is not pairs:
            doubts.append("sums of copies of weights do not count in it")
    if best is None or seconds > bound * (1 + ROUNDING):
        best, seconds = _best(problem, [*plans, *found, *_found_by_others(problem)])
    if best is None:
        raise _nothing_fits(problem, contraction, pairs, fleet)
    counted = "too many to count" if count is None else f"{count}"
    return Plan(
        placement=best,
        lower_bound=min(bound, seconds),
        proven_optimal=seconds <= bound * (1 + ROUNDING),
        note=f"{len(workload)} of {len(problem.workload)} operators cost something; downsets: "
        f"{counted}, looked at {len(pairs.downsets)}" + "".join(f"; {doubt}" for doubt in doubts),
    )


def _may_miss_memory(problem: PlanningProblem, pairs: StagePairs) -> Indices:
    """Return the stages that do not fit everywhere, whatever is in flight and computes."""
    cluster, memory, working = problem.cluster, problem.memory, problem.workload.working_bytes
    if working is None:
        return numpy.zeros(0, dtype=numpy.intp)
    most_in_flight = 1 + (cluster.accelerators - 1) * (1 + largest_of(memory.in_flight_per_link))
    largest = numpy.full(len(pairs), working.max())
    needed = memory.stage_bytes(replace(pairs.work, working_bytes=largest), most_in_flight)
    least = min(limit for limit in cluster.memory_bytes if limit is not None)
    return numpy.flatnonzero(needed > least)


def _doubts(
    problem: PlanningProblem, complete: bool, fleet: Fleet, levels: bool, pairs: StagePairs
) -> Iterator[str]:
    """Yield what may keep the result from being the optimum."""
    if fleet.cluster is not problem.cluster:
        yield "accelerators of too many kinds count as the slowest"
    elif not complete:
        yield "not all stages and groups of accelerators were looked at"
    if levels:
        yield "links of several levels count as all fast or all slow"
    if fleet.limits_memory and len(pairs.downsets) > pairs.downsets.shape[1] + 1:
        yield "memory counts branches as if they were in a row"


def _with_fewest_sums(
    problem: PlanningProblem, workload: Workload, pairs: StagePairs
) -> StagePairs:
    """Return the stages without sums of copies, unless all stages make their updates together.

    With different numbers of replicas, copies are updated less often than a stage's own weights.
    """
    alike = not problem.replicate or workload.flushes or problem.costs == "serial"
    alike |= problem.cluster.accelerators <= workload.accumulate * workload.microbatches
    if alike or not any(tie.trained for tie in workload.ties):
        return pairs
    return replace(pairs, work=replace(pairs.work, tied_updates=numpy.zeros(len(pairs))))


def _chain_search(
    pairs: StagePairs, fleet: Fleet, problem: PlanningProblem, *, side_by_side: bool = False
) -> ChainSearch:
    """Return the search for this fleet."""
    kind: type[ChainSearch] = EqualAccelerators
    if len(fleet.kinds) > 1:
        kind = UnequalAccelerators
    return kind(pairs, fleet, problem.costs, problem.memory, side_by_side=side_by_side)


def _best(problem: PlanningProblem, plans: Iterable[Placement]) -> tuple[Placement | None, float]:
    """Return the fastest placement of those that fit, and its seconds per minibatch."""
    best, seconds = None, numpy.inf
    for plan in plans:
        prediction = problem.predict(plan)
        if not prediction.missing_bytes and prediction.seconds_per_minibatch < seconds:
            best, seconds = plan, prediction.seconds_per_minibatch
    return best, seconds


def _bound(
    problem: PlanningProblem,
    pairs: StagePairs,
    fleet: Fleet,
    search: ChainSearch,
    chain: Chain | None,
) -> float:
    """Return seconds that no chain of downsets beats on the fastest links.

    ``chain`` is the best chain whose stages are in a row, as ``search`` has found it.

    Stages of a workload without branches are in a row.
    """
    in_a_row = len(pairs.downsets) == pairs.downsets.shape[1] + 1
    if chain is not None and (in_a_row or not fleet.limits_memory):
        return chain.seconds if search.least is None else search.least
    search = _chain_search(pairs, fleet, problem, side_by_side=True)
    chain = search.fastest()
    return 0.0 if chain is None else (chain.seconds if search.least is None else search.least)


def _found_by_others(problem: PlanningProblem) -> Iterator[Placement]:
    """Yield the placements of planners that do not prove anything."""
    for planner in _OTHERS:
        with suppress(InvalidInput):
            placement = planner(problem).placement
            if problem.replicate or all(len(s.accelerators) == 1 for s in placement.stages):
                yield placement


def _affordable(fleet: Fleet) -> Fleet:
    """Return the fleet, or one with fewer kinds of accelerators or fewer sizes of groups."""
    if len(fleet.kinds) == 1:
        return fleet
    if fleet.states > _MOST_STATES:
        cluster = fleet.cluster
        limits = [limit for limit in cluster.memory_bytes if limit is not None]
        host = Host(
            name="slowest",
            accelerators=cluster.accelerators,
            speed=min(cluster.speeds),
            memory_bytes=min(limits, default=None),
        )
        return replace(fleet, cluster=Cluster(hosts=(host,), within_host=cluster.within_host))
    most = _MOST_TRANSITIONS // fleet.states
    return fleet if len(fleet.choices) <= most else replace(fleet, most_choices=most)


def _extremes(cluster: Cluster) -> tuple[Link, Link]:
    """Return a link that none is faster than, and one that none is slower than.

    They are the same where all links are.
    """
    fastest = Link(
        bandwidth_bytes_per_second=max(link.bandwidth_bytes_per_second for link in cluster.levels),
        latency_seconds=min(link.latency_seconds for link in cluster.levels),
    )
    slowest = cluster.levels[0]
    networks = [host.network for host in cluster.hosts if host.network is not None]
    for link in (*cluster.levels[1:], *(networks if len(cluster.host_names) > 1 else ())):
        slowest = slowest.slower(link)
    return fastest, slowest


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
    """Return seconds that no placement can beat.

    They are the larger of all work shared evenly and the most expensive operator.
    """
    workload = workload.without_tied_weights()
    work = workload.seconds + workload.update_seconds / workload.accumulate
    even = float(work.sum()) / sum(problem.cluster.speeds)
    zero = numpy.zeros(len(workload))
    alone = workload.work_of(
        lambda values: values,
        incoming_bytes=zero,
        outgoing_bytes=zero,
        last=numpy.ones(len(workload), dtype=bool),
    )
    fastest = numpy.full(len(workload), numpy.inf)
    for group in fleet.groups:
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
        return _chain_search(pairs, larger, problem).within(numpy.inf)

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
