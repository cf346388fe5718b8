"""The exact planner: the fastest of all placements whose stages are chains of downsets.

Branches may become stages side by side, stages may be replicated, and memory may be limited. The
stages between all downsets are looked at, so a problem with too many of them is refused, as is one
with accelerators of several speeds. Where the result is not proven to be the optimum, it is the
best of what the program finds in a simpler world, and the lower bound is what holds nevertheless:

* copies of weights on several stages, where stages differ in replicas: as if each stage summed them
  for its own updates, and as if no stage did, which gives the bound;
* links of several levels: as if all were the slowest, and as if all were the fastest, which gives
  the bound;
* limits of memory: as if all accelerators had the smallest and stages stood in a row, and as if all
  had the largest and each stage had one minibatch in flight, which gives the bound. On equal
  accelerators and without branches, stages do stand in a row, and that gives the bound as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy
from numpy.typing import NDArray

from drlpp.costs.memory import MemoryModel
from drlpp.costs.stage_cost import Array, Group, StageSeconds
from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.downsets import Indices, StagePairs, all_downsets
from drlpp.planners.problem import PlanningProblem
from drlpp.schedule.per_stage import most
from drlpp.specs.cluster import Cluster, Link

MOST_DOWNSETS = 6_000
"""The most downsets that are looked at; the stages between them grow with the square."""

MOST_COSTS = 120_000_000
"""Costs of stages on numbers of accelerators that are kept in memory, 8 bytes each."""

_FEW_CANDIDATES = 20_000
"""Costs that are looked at one by one, or by halves; of more, the range is halved."""

_ROUNDING = 1e-9
"""The same sum in another order may come out smaller by this."""


def exact(problem: PlanningProblem) -> Plan:
    """Find the fastest placement by the problem's rule, and prove it where that is possible.

    Raises:
        NothingFits: if no placement that was looked at fits into memory.
        InvalidInput: accelerators differ, or there are too many stages to look at each.
    """
    cluster = problem.cluster
    if len(set(cluster.speeds)) > 1:
        raise InvalidInput(
            "exact plans for accelerators of one speed, and these differ; use search or pipedream"
        )
    pairs = _all_stages(problem)
    limits = [inf if limit is None else limit for limit in cluster.memory_bytes]
    if min(limits) < inf:
        pairs = pairs.with_working_bytes(problem.workload)
    fastest, slowest = _extremes(cluster)
    least = _with_fewest_sums(problem, pairs)
    one_for_all = isinstance(problem.memory.method.in_flight_per_link, int)
    is_chain = one_for_all and len(pairs.downsets) == len(problem.workload) + 1
    in_a_row = is_chain or max(limits) == inf
    bound = (fastest, least, max(limits), in_a_row)
    others = [(fastest, least), (slowest, least), (fastest, pairs)]
    worlds = dict.fromkeys([bound, *((*other, min(limits), True) for other in others)])
    chains = [_ChainSearch(problem, *world).fastest() for world in worlds]
    placements = [_placement(pairs, chain) for chain in chains if chain is not None]
    predictions = [problem.predict(placement) for placement in placements]
    fitting = [number for number, one in enumerate(predictions) if not one.missing_bytes]
    if not fitting or chains[0] is None:
        raise NothingFits(
            f"no placement of {problem.workload.model} that exact looked at fits into "
            f"{min(limits):,.0f} bytes, the smallest memory; expected more, a smaller batch, or a "
            "method that keeps less"
        )
    best = min(fitting, key=lambda number: predictions[number].seconds_per_minibatch)
    seconds, lower_bound = predictions[best].seconds_per_minibatch, chains[0].seconds
    proven = seconds <= lower_bound * (1 + _ROUNDING)
    note = f"{len(pairs.downsets)} downsets"
    if not proven:
        also = "links of several levels, " if fastest != slowest else ""
        also += "some of the memory, " if bound[2:] != (min(limits), True) else ""
        note += f"; the bound leaves out {also}tensors and weights that several stages read"
    return Plan(
        placements[best],
        lower_bound=min(lower_bound, seconds),
        proven_optimal=proven,
        note=note,
    )


def _all_stages(problem: PlanningProblem) -> StagePairs:
    downsets = all_downsets(problem.workload, MOST_DOWNSETS)
    if downsets is not None:
        pairs = StagePairs.of(problem.workload, downsets)
        if len(pairs) * len(_choices(problem)) <= MOST_COSTS:
            return pairs
    raise InvalidInput(
        f"{problem.workload.model} has too many sets of operators to begin with (downsets) for "
        f"exact to look at all stages on {problem.cluster.accelerators} accelerators; use search "
        "or pipedream"
    )


def _choices(problem: PlanningProblem) -> range:
    """Return the numbers of replicas that a stage may have."""
    return range(1, problem.cluster.accelerators + 1) if problem.replicate else range(1, 2)


def _with_fewest_sums(problem: PlanningProblem, pairs: StagePairs) -> StagePairs:
    """Return the stages without sums of copies, unless all stages make their updates together.

    With different numbers of replicas, copies are updated less often than a stage's own weights.
    """
    workload = problem.workload
    alike = not problem.replicate or workload.method.flushes
    alike |= (
        problem.cluster.accelerators <= workload.method.accumulate * workload.method.microbatches
    )
    if alike or not any(tie.trained for tie in workload.ties):
        return pairs
    return replace(pairs, work=replace(pairs.work, tied_updates=numpy.zeros(len(pairs))))


def _extremes(cluster: Cluster) -> tuple[Link, Link]:
    """Return a link that none is faster than, and one that none is slower than."""
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


def _placement(pairs: StagePairs, chain: _Chain) -> Placement:
    stages, taken = [], 0
    for number, replicas in zip(chain.stages, chain.replicas, strict=True):
        inside = pairs.downsets[pairs.end[number]] & ~pairs.downsets[pairs.begin[number]]
        operators = tuple(numpy.flatnonzero(inside).tolist())
        held = tuple(range(taken, taken + replicas))
        stages.append(Stage(operators=operators, accelerators=held))
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
    mean more in flight on it (:meth:`drlpp.schedule.pipeline.Pipeline.in_flight`). Stages on
    parallel branches have fewer; they count as if they were ``in_a_row``, or all as if they had
    one: no placement needs less memory.
    """

    def __init__(
        self, problem: PlanningProblem, link: Link, pairs: StagePairs, limit: float, in_a_row: bool
    ) -> None:
        self._pairs, self._accelerators = pairs, problem.cluster.accelerators
        self._replicas = numpy.array(_choices(problem))
        speed = problem.cluster.speeds[0]
        bandwidth, latency = link.bandwidth_bytes_per_second, link.latency_seconds
        groups = [Group(m, speed, bandwidth, latency, bandwidth) for m in self._replicas.tolist()]
        # (choices, stages)
        self._seconds = numpy.array([StageSeconds.of(pairs.work, g).total() for g in groups])
        self._most_behind = None
        if limit < inf:
            self._most_behind = self._with_room(problem.memory, limit, in_a_row)

    def _with_room(self, memory: MemoryModel, limit: float, in_a_row: bool) -> NDArray[numpy.int16]:
        """Return the accelerators behind that leave room: ``(choices, stages)``; −1 for none."""
        each = 1 + most(memory.method.in_flight_per_link)
        found = numpy.full(self._seconds.shape, -1, numpy.int16)
        for row, m in zip(found, self._replicas.tolist(), strict=True):
            deepest = {1 - (-each * n // m): n for n in range(self._accelerators)}
            for in_flight, behind in deepest.items() if in_a_row else [(1, self._accelerators)]:
                row[memory.stage_bytes(self._pairs.work, in_flight, m) <= limit] = behind
        return found

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
        """Return a chain within ``limit`` seconds, on the fewest accelerators; then stages."""
        pairs, replicas = self._pairs, self._replicas
        allowed = self._seconds <= limit
        # Accelerators count first, then stages.
        worth = len(pairs.downsets) + 1

        def fewest(possible: NDArray[numpy.bool_]) -> tuple[Indices, Array]:
            choice = possible.argmax(axis=0)
            return choice, numpy.where(possible.any(axis=0), replicas[choice] * worth + 1, inf)

        choice, needed = fewest(allowed)
        suffices = numpy.full(len(pairs.downsets), inf)
        suffices[-1] = 0
        stage_at = numpy.zeros(len(pairs.downsets), dtype=numpy.intp)
        for i in range(len(pairs.downsets) - 2, -1, -1):
            stages = slice(pairs.first[i], pairs.first[i + 1])
            behind = suffices[pairs.end[stages]]
            if self._most_behind is not None:
                room = numpy.floor(behind / worth) <= self._most_behind[:, stages]
                choice[stages], needed[stages] = fewest(allowed[:, stages] & room)
            total = needed[stages] + behind
            best = int(total.argmin())
            suffices[i] = total[best]
            stage_at[i] = stages.start + best
        if numpy.floor(suffices[0] / worth) > self._accelerators:
            return None
        found, at = [], 0
        while at < len(pairs.downsets) - 1:
            found.append(int(stage_at[at]))
            at = int(pairs.end[found[-1]])
        return _Chain(
            tuple(found),
            tuple(replicas[choice[found]].tolist()),
            float(self._seconds[choice[found], found].max()),
        )
