"""The exact planner: the fastest of all placements whose stages are chains of downsets.

Branches may become stages side by side, stages may be replicated, and memory may be limited.
Operators that cost nothing are joined with their neighbours first, which loses nothing
(:mod:`drlpp.costs.contraction`). The stages between all downsets are looked at, so a problem
with too many of them is refused, as is one with accelerators of several speeds or memories. Where
the result is not proven to be the optimum, it is the best of what the program finds in a simpler
world, and the lower bound is what holds nevertheless:

* copies of weights on several stages, where stages differ in replicas: as if each stage summed them
  for its own updates, and as if no stage did, which gives the bound;
* links of several levels: as if all were the slowest, and as if all were the fastest, which gives
  the bound;
* a memory limit, and branches: with as many minibatches in flight as if stages were in a row, and
  with one in flight on each, which gives the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy

from drlpp.costs.contraction import Contraction, contract_free_operators
from drlpp.costs.stage_cost import Array, Group, StageSeconds
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.downsets import Indices, StagePairs, all_downsets
from drlpp.planners.problem import PlanningProblem
from drlpp.schedule.per_stage import most as largest_of
from drlpp.specs.cluster import Cluster, Link

MOST_DOWNSETS = 6_000
"""The most downsets that are looked at; the stages between them grow with the square."""

MOST_COSTS = 120_000_000
"""Costs of stages on numbers of accelerators that are kept in memory, 8 bytes each."""

_FEW_CANDIDATES = 20_000
"""Costs that are looked at one by one, or by halves; of more, the range is halved."""

_ROUNDING = 1e-9
"""The same sum in another order may come out smaller by this."""


def downsets_of(workload: Workload, most: int) -> int | None:
    """Count the downsets of operators that cost something; None if there are more."""
    found = all_downsets(contract_free_operators(workload).workload, most)
    return None if found is None else len(found)


def exact(problem: PlanningProblem) -> Plan:
    """Find the fastest placement by the problem's rule, and prove it where that is possible.

    Raises:
        NothingFits: if no placement that was looked at fits into memory.
        InvalidInput: accelerators differ, or there are too many stages to look at each.
    """
    cluster = problem.cluster
    if len(set(zip(cluster.speeds, cluster.memory_bytes, strict=True))) > 1:
        raise InvalidInput(
            "exact plans for accelerators of one speed and memory, and these differ; use search or "
            "pipedream"
        )
    contraction = contract_free_operators(problem.workload)
    pairs = _all_stages(problem, contraction.workload)
    limit = cluster.memory_bytes[0]
    if limit is not None:
        tight = _may_miss_memory(problem, pairs, limit)
        pairs = pairs.with_working_bytes(problem.workload, contraction.members, tight)
    fastest, slowest = _extremes(cluster)
    least = _with_fewest_sums(problem, pairs)
    worlds = dict.fromkeys([(fastest, least), (slowest, least), (fastest, pairs)])
    chains = [_ChainSearch(stages, problem, link, limit).fastest() for link, stages in worlds]
    # A workload without branches has stages in a row.
    in_a_row = len(pairs.downsets) == pairs.downsets.shape[1] + 1
    bound = chains[0]
    if limit is not None and not in_a_row:
        bound = _ChainSearch(least, problem, fastest, limit, side_by_side=True).fastest()
    placements = [_placement(contraction, pairs, chain) for chain in chains if chain is not None]
    best, seconds, lower_bound = None, inf, 0.0 if bound is None else bound.seconds
    for placement in placements:
        prediction = problem.predict(placement)
        if not prediction.missing_bytes and prediction.seconds_per_minibatch < seconds:
            best, seconds = placement, prediction.seconds_per_minibatch
    if best is None:
        raise NothingFits(
            f"no placement of {problem.workload.model} that exact looked at fits into {limit:,.0f} "
            "bytes; expected more memory, a smaller batch, or a method that keeps less"
        )
    proven = seconds <= lower_bound * (1 + _ROUNDING)
    note = f"{len(contraction.members)} of {len(problem.workload)} operators cost something, "
    note += f"{len(pairs.downsets)} downsets"
    if not proven:
        doubts = {
            "links of several levels": fastest != slowest,
            "memory of branches": limit is not None and not in_a_row,
            "tensors and weights that several stages read": True,
        }
        note += "; the bound leaves out " + ", ".join(
            what for what, is_so in doubts.items() if is_so
        )
    return Plan(best, lower_bound=min(lower_bound, seconds), proven_optimal=proven, note=note)


def _all_stages(problem: PlanningProblem, workload: Workload) -> StagePairs:
    downsets = all_downsets(workload, MOST_DOWNSETS)
    if downsets is not None:
        pairs = StagePairs.of(workload, downsets)
        if len(pairs) * len(_choices(problem)) <= MOST_COSTS:
            return pairs
    raise InvalidInput(
        f"{workload.model} has too many sets of operators to begin with (downsets) for exact to "
        f"look at all stages on {problem.cluster.accelerators} accelerators; use search or "
        "pipedream"
    )


def _choices(problem: PlanningProblem) -> range:
    """Return the numbers of replicas that a stage may have."""
    return range(1, problem.cluster.accelerators + 1) if problem.replicate else range(1, 2)


def _may_miss_memory(problem: PlanningProblem, pairs: StagePairs, limit: float) -> Indices:
    """Return the stages that may not fit, whatever is in flight and computes."""
    memory, working = problem.memory, problem.workload.working_bytes
    if working is None:
        return numpy.zeros(0, dtype=numpy.intp)
    behind = problem.cluster.accelerators - 1
    most_in_flight = 1 + behind * (1 + largest_of(memory.in_flight_per_link))
    largest = numpy.full(len(pairs), working.max())
    needed = memory.stage_bytes(replace(pairs.work, working_bytes=largest), most_in_flight)
    return numpy.flatnonzero(needed > limit)


def _with_fewest_sums(problem: PlanningProblem, pairs: StagePairs) -> StagePairs:
    """Return the stages without sums of copies, unless all stages make their updates together.

    With different numbers of replicas, copies are updated less often than a stage's own weights.
    """
    workload = problem.workload
    alike = not problem.replicate or workload.flushes or problem.costs == "serial"
    alike |= problem.cluster.accelerators <= workload.accumulate * workload.microbatches
    if alike or not any(tie.trained for tie in workload.ties):
        return pairs
    return replace(pairs, work=replace(pairs.work, tied_updates=numpy.zeros(len(pairs))))


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


@dataclass(frozen=True)
class _Chain:
    """Stages (numbers of :class:`StagePairs`), the replicas of each, the slowest's seconds."""

    stages: tuple[int, ...]
    replicas: tuple[int, ...]
    seconds: float


def _placement(contraction: Contraction, pairs: StagePairs, chain: _Chain) -> Placement:
    stages, taken = [], 0
    for number, replicas in zip(chain.stages, chain.replicas, strict=True):
        inside = pairs.downsets[pairs.end[number]] & ~pairs.downsets[pairs.begin[number]]
        operators = [
            member for group in numpy.flatnonzero(inside) for member in contraction.members[group]
        ]
        held = tuple(range(taken, taken + replicas))
        stages.append(Stage(operators=tuple(sorted(operators)), accelerators=held))
        taken += replicas
    return Placement(stages=tuple(stages))


class _ChainSearch:
    """The fastest chain of downsets, with accelerators for every stage: a program by limits.

    Is there a placement in which no stage takes longer than a limit? Going from the last downset to
    the first, every downset I asks how many accelerators suffice for all that is behind it: those
    of a stage that begins at I, and those that suffice behind its end. The smallest limit with an
    answer is the optimum. It is one of the stages' costs, so it is found exactly: by halving the
    range first, and then among the costs that are left in it.

    The fewest accelerators that suffice are as good as any number, since more behind a stage only
    mean more minibatches in flight on it. With a memory limit a stage of m replicas and n
    accelerators behind it has 1 + ⌈(1 + N) n / m⌉ in flight, with N = 0 for each link by default
    (pipedream §3.2). Stages on parallel branches have fewer; they count as if they were in a row,
    or all as if they were ``side_by_side``: no placement needs less memory.
    """

    def __init__(
        self,
        pairs: StagePairs,
        problem: PlanningProblem,
        link: Link,
        limit: float | None,
        *,
        side_by_side: bool = False,
    ) -> None:
        self._pairs, self._problem, self._limit = pairs, problem, limit
        self._side_by_side = side_by_side
        self._replicas = numpy.array(_choices(problem))
        speed, costs = problem.cluster.speeds[0], problem.costs
        bandwidth, latency = link.bandwidth_bytes_per_second, link.latency_seconds
        groups = [Group(m, speed, bandwidth, latency, bandwidth) for m in self._replicas.tolist()]
        # (choices, stages)
        self._seconds = numpy.array(
            [StageSeconds.of(pairs.work, group, costs).total(costs) for group in groups]
        )

    def fastest(self) -> _Chain | None:
        """Return the optimum, or None if nothing fits into memory."""
        best = self._within(inf)
        if best is None:
            return None
        low, high, candidates = 0.0, best.seconds, self._seconds.ravel()
        while high > low:
            candidates = candidates[(candidates > low) & (candidates < high)]
            if not len(candidates):
                break
            if len(candidates) > _FEW_CANDIDATES:
                limit = (low + high) / 2
            else:
                half = len(candidates) // 2
                limit = float(numpy.partition(candidates, half)[half])
            found = self._within(limit)
            if found is None:
                low = limit
            else:
                best, high = found, found.seconds
        return best

    def _within(self, limit: float) -> _Chain | None:
        """Return a chain none of whose stages takes longer than ``limit`` seconds per minibatch.

        Of those that suffice it has the fewest accelerators, and of these the fewest stages.
        """
        pairs, replicas, limited = self._pairs, self._replicas, self._limit is not None
        allowed = self._seconds <= limit
        first_choice = allowed.argmax(axis=0)
        # Accelerators count first, then stages.
        worth = len(pairs.downsets) + 1
        needed = numpy.where(allowed.any(axis=0), replicas[first_choice] * worth + 1, inf)
        suffices = numpy.full(len(pairs.downsets), inf)
        suffices[-1] = 0
        stage_at, choice_at = numpy.zeros((2, len(pairs.downsets)), dtype=numpy.intp)
        for i in range(len(pairs.downsets) - 2, -1, -1):
            stages = slice(pairs.first[i], pairs.first[i + 1])
            behind = suffices[pairs.end[stages]]
            if limited:
                with_room = allowed[:, stages] & (
                    numpy.floor(behind / worth) <= self._most_behind[:, stages]
                )
                choice = with_room.argmax(axis=0)
                total = numpy.where(with_room.any(axis=0), replicas[choice] * worth + 1, inf)
                total = total + behind
            else:
                total = needed[stages] + behind
            best = int(total.argmin())
            suffices[i] = total[best]
            stage_at[i] = stages.start + best
            choice_at[i] = choice[best] if limited else first_choice[stages.start + best]
        if numpy.floor(suffices[0] / worth) > self._problem.cluster.accelerators:
            return None
        stages_found, choices_found, at = [], [], 0
        while at < len(pairs.downsets) - 1:
            stages_found.append(int(stage_at[at]))
            choices_found.append(int(choice_at[at]))
            at = int(pairs.end[stage_at[at]])
        return _Chain(
            tuple(stages_found),
            tuple(replicas[choices_found].tolist()),
            float(self._seconds[choices_found, stages_found].max()),
        )

    @cached_property
    def _most_behind(self) -> Array:
        """``(choices, stages)``: accelerators behind a stage that leave room in its memory.

        Below 0 where the stage does not fit at all.
        """
        memory, work = self._problem.memory, self._pairs.work
        each, most = 1 + largest_of(memory.in_flight_per_link), self._problem.cluster.accelerators
        found, limit = numpy.full(self._seconds.shape, -1.0), self._limit or inf
        for row, replicas in zip(found, self._replicas.tolist(), strict=True):
            deepest = {1 + -(-each * behind // replicas): behind for behind in range(most)}
            if self._side_by_side:
                deepest = {1: most}
            # More behind never need less.
            for in_flight, behind in deepest.items():
                row[memory.stage_bytes(work, in_flight, replicas) <= limit] = behind
        return found
