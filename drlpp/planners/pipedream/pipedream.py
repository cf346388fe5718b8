"""PipeDream's planner (pipedream §3.1): replicated stages, on clusters of several levels.

For a stage with m replicas, T the forward and backward seconds of its operators, W its parameter
bytes, a the bytes that cross the cut before it, and B the bandwidth of the level, it minimises the
slowest of all

    max(T, 4(m − 1) W / (m B)) / m    and    2 a / B.

The paper prints 2(m − 1) W / B for the time of the all-reduce, which is not that of the
(m − 1)/m · W bytes that the text before it says every worker sends and receives; here it is that of
a ring. On the published profiles, planned flat, this gives the configurations of the paper's table
1 (on 16 accelerators 15-1 for VGG-16 and AlexNet, 16 for ResNet-50; on four straight for GNMT-8, in
its graph); the formula as printed splits ResNet-50 into 8-8.

The dynamic program goes over the levels of the cluster. On level k,

    A(i → j, m) = min( T(i → j, m),
                       min over s, m' < m of max(A(i → s, m − m'), T(s → j, m'), 2 a_s / B) )

where i, s and j are states (:mod:`drlpp.planners.pipedream.cuts`), and T(i → j, m) on a level is
the formula above with A(i → j, all) of a component of level k − 1 in place of T. A stage on m
components is a pipeline in each of them, and stage by stage these are replicas of each other.

Cuts are those of a ``chain``, what is left when branches are compressed, or of the ``graph``,
wherever a set of operators can be computed before all others, as in the authors' code. A model with
long skip connections has hardly any chain: GNMT's is of two layers, and the straight pipelines that
the paper reports for it are found only in its graph. Latency and the optimizer's time do not count,
and where accelerators differ, all count as the slowest and the smallest.

With a memory limit a stage needs what :mod:`drlpp.costs.memory` says, with as many minibatches in
flight as there are workers from it to the end for each of its replicas (NOAM, pipedream §3.2), or
as many more as the problem's memory has for each link; accelerators that a straight pipeline leaves
idle in later hosts count as workers there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations, pairwise
from math import ceil, isinf
from typing import Literal

import numpy
from numpy.typing import NDArray

from drlpp.costs.stage_cost import Array
from drlpp.errors import NothingFits
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.plan import Plan
from drlpp.planners.pipedream.cuts import States, chain_states, graph_states
from drlpp.planners.problem import PlanningProblem
from drlpp.schedule.per_stage import most
from drlpp.specs.cluster import Cluster

Cuts = Literal["chain", "graph"]

# Equal costs may differ by the rounding of sums.
_TOLERANCE = 1e-9


def pipedream(problem: PlanningProblem, cuts: Cuts = "chain", flat: bool = False) -> Plan:
    """Plan the pipeline whose slowest stage or cut is the fastest, by PipeDream's formula.

    It uses all accelerators. Without replication it is a straight pipeline with a stage for each,
    or for fewer where that is as fast; a component of a higher level then holds a part of it.
    Accelerators are numbered along the pipeline, so that those of a host stay together. Among plans
    of equal cost the choice is always the same: on the outermost level fewer stages, then earlier
    cuts (the last cut first), then more replicas for earlier stages, and within every stage the
    same for the level below.

    Args:
        problem: its rule of costs does not matter, this planner has its own.
        cuts: where there may be some.
        flat: whether to plan for one level with the slowest bandwidth of the cluster, as is done
            for irregular clusters (:func:`levels_of`). PipeDream's 15-1 on four hosts of four is
            such a plan: on levels, the replicas of a stage fill hosts or stay within one.

    Raises:
        NothingFits: if none of these pipelines fits into the memory.
        InvalidInput: if the graph can be cut in too many places.
    """
    levels = levels_of(problem.cluster, flat)
    states = (chain_states if cuts == "chain" else graph_states)(problem.workload)
    program = _Program(problem, states, levels)
    seconds = program.best
    if isinf(seconds):
        raise NothingFits(
            f"no pipeline of PipeDream's fits into {program.limit:,.0f} bytes, the smallest "
            "memory; expected more, a smaller batch, or a method that keeps less"
        )
    components = " × ".join(str(level.components) for level in reversed(levels))
    note = f"PipeDream's formula, on {components} accelerators"
    return Plan(Placement(stages=program.plan()), own_seconds=seconds, note=note)


@dataclass(frozen=True)
class Level:
    """Level k: ``components`` components of level k − 1, of ``size`` accelerators each.

    ``bandwidth`` is that of the slowest link between two of them, in bytes per second.
    """

    components: int
    size: int
    bandwidth: float


def levels_of(cluster: Cluster, flat: bool = False) -> tuple[Level, ...]:
    """Return the levels of a cluster (pipedream figure 7), the innermost first.

    Levels of a single component are left out. One level with the slowest bandwidth of all stands
    for a cluster that has no such structure: hosts of unlike numbers of accelerators, accelerators
    that are not listed together with those of their host, or of unlike speeds. It also stands for a
    single accelerator, and for any cluster if ``flat`` asks for it.
    """
    hosts = cluster.host_of
    bandwidths: dict[int, float] = {}
    for one, other in combinations(range(cluster.accelerators), 2):
        level, link = cluster.level(one, other), cluster.link(one, other)
        bandwidth = link.bandwidth_bytes_per_second
        bandwidths[level] = min(bandwidth, bandwidths.get(level, bandwidth))
    regular = len(set(cluster.speeds)) == 1 and _is_regular(hosts)
    if flat or not regular or not bandwidths:
        slowest = min(bandwidths.values(), default=cluster.within_host.bandwidth_bytes_per_second)
        return (Level(cluster.accelerators, 1, slowest),)
    per_host = hosts.count(hosts[0])
    counts = (per_host, 1), (len(hosts) // per_host, per_host)
    return tuple(
        Level(count, size, bandwidths[level])
        for level, (count, size) in enumerate(counts)
        if count > 1
    )


def _is_regular(groups: Sequence[int]) -> bool:
    """Return whether all groups are of the same size and none is interrupted by another."""
    together = 1 + sum(one != other for one, other in pairwise(groups))
    counts = Counter(groups)
    return together == len(counts) and len(set(counts.values())) == 1


@dataclass(frozen=True)
class _Share:
    """A stage of one level: states, ``replicas`` components of it, and those ``after`` it."""

    begin: int
    end: int
    replicas: int
    after: int


class _Program:
    """The best pipelines between all pairs of states.

    Every component uses all that it consists of. Where stages are not to be replicated, there may
    be more accelerators than a pipeline has use for, and it uses as many as are best. Matrices are
    (states, states), infinite where there is no stage or its accelerators cannot hold it.
    """

    def __init__(self, problem: PlanningProblem, states: States, levels: tuple[Level, ...]) -> None:
        limits = [limit for limit in problem.cluster.memory_bytes if limit is not None]
        self.limit = min(limits, default=None)
        seconds = states.between(problem.workload.seconds)
        self._problem, self._states, self._levels = problem, states, levels
        self._compute = states.matrix(seconds / min(problem.cluster.speeds), numpy.inf)
        self._parameter_bytes = states.matrix(states.work.parameter_bytes)
        # They hold what they return as long as this program lives.
        self._component = cache(self._find_component)
        self._cost = cache(self._find_cost)

    @cached_property
    def best(self) -> float:
        """A over all states on the whole cluster; infinite if no pipeline is allowed."""
        top = len(self._levels)
        rows = [self._table(top, Fraction(0), total, 1)[total] for total in self._totals(top)]
        return float(min(row[0, -1] for row in rows))

    def plan(self) -> tuple[Stage, ...]:
        """Return the stages of the best pipeline, in order."""
        limit = self.best * (1 + _TOLERANCE)
        return self._plan(len(self._levels), 0, len(self._states) - 1, Fraction(0), limit)

    def _totals(self, number: int) -> range:
        components = self._levels[number - 1].components
        return range(components if self._problem.replicate else 1, components + 1)

    def _replicas(self, available: int) -> range:
        return range(1, (available if self._problem.replicate else min(available, 1)) + 1)

    def _find_component(self, number: int, behind: Fraction) -> Array:
        """Return A(i → j, all) of level ``number``; ``behind`` accelerators follow each of it."""
        if number > 0:
            tables = [
                self._table(number, behind, total, len(self._states))[total]
                for total in self._totals(number)
            ]
            return numpy.minimum.reduce(tables)
        if self.limit is None:
            return self._compute
        memory = self._problem.memory
        # A stage has one more minibatch in flight than replicas of it follow, their links included.
        in_flight = 1 + ceil((1 + most(memory.method.in_flight_per_link)) * behind)
        needed = memory.stage_bytes(self._states.work_with_limits, in_flight)
        return numpy.where(self._states.matrix(needed) <= self.limit, self._compute, numpy.inf)

    def _find_cost(
        self, number: int, replicas: int, after: int, behind: Fraction, first: bool
    ) -> Array:
        """Return T(i → j, m), and what is to be paid for its cuts.

        Args:
            number: of the level whose components hold the stage.
            replicas: m, of those components.
            after: components behind it, in its component of the next level.
            behind: accelerators behind that.
            first: whether it begins the pipeline of its component of the next level.
        """
        level = self._levels[number - 1]
        inner = self._component(number - 1, self._behind(number, replicas, after, behind))
        # What a ring all-reduce moves through an accelerator both ways.
        bytes_ = 4 * (replicas - 1) / replicas * self._parameter_bytes
        cost = numpy.maximum(inner, bytes_ / level.bandwidth) / replicas
        if first:
            return cost
        return numpy.maximum(cost, self._states.cut_bytes[:, None] / level.bandwidth)

    def _behind(self, number: int, replicas: int, after: int, behind: Fraction) -> Fraction:
        """Return the accelerators behind each of the components that hold a stage, by replica."""
        if self.limit is None:
            return Fraction(0)
        return (after * self._levels[number - 1].size + behind) / replicas

    def _after(self, components: int) -> int:
        """Return the components behind a stage, if that matters."""
        return 0 if self.limit is None else components

    def _table(self, number: int, behind: Fraction, total: int, rows: int) -> list[Array]:
        """Return A(i → j, m) for m = 0 … total and i < ``rows``; in the end all are used."""
        table = [numpy.full((rows, len(self._states)), numpy.inf)]
        for used in range(1, total + 1):
            best = table[0]
            for replicas in self._replicas(used):
                first = replicas == used
                cost = self._cost(number, replicas, self._after(total - used), behind, first)
                if first:
                    best = numpy.minimum(best, cost[:rows])
                else:
                    best = numpy.minimum(best, _slower_of(table[used - replicas], cost))
            table.append(best)
        return table

    def _plan(
        self, number: int, begin: int, end: int, behind: Fraction, limit: float
    ) -> tuple[Stage, ...]:
        """Return the stages between two states, on accelerators counted from the component's."""
        if number == 0:
            return (Stage(operators=self._states.operators(begin, end), accelerators=(0,)),)
        size, stages, used = self._levels[number - 1].size, [], 0
        for share in self._shares(number, begin, end, behind, limit):
            inner_behind = self._behind(number, share.replicas, share.after, behind)
            # Replicas take turns, so each may take so many times as long.
            inner_limit = limit * share.replicas
            inner = self._plan(number - 1, share.begin, share.end, inner_behind, inner_limit)
            bases = [(used + replica) * size for replica in range(share.replicas)]
            for stage in inner:
                held = tuple(base + offset for base in bases for offset in stage.accelerators)
                stages.append(Stage(operators=stage.operators, accelerators=held))
            used += share.replicas
        return tuple(stages)

    def _shares(
        self, number: int, begin: int, end: int, behind: Fraction, limit: float
    ) -> tuple[_Share, ...]:
        """Return the stages of one level, none of which costs more than ``limit``."""
        found = [
            self._fewest(number, begin, end, behind, limit, total) for total in self._totals(number)
        ]
        # Only unreplicated stages leave a choice of totals, and then a total is a number of stages.
        return min((shares for shares in found if shares), key=len)

    def _fewest(
        self, number: int, begin: int, end: int, behind: Fraction, limit: float, total: int
    ) -> tuple[_Share, ...]:
        """Return the fewest stages on exactly ``total`` components; none if that cannot be.

        A maximum hides what its smaller terms cost, so this is a second program, over the stages
        that are as fast as the best plan needs them.
        """
        fewest = numpy.full((total + 1, len(self._states)), numpy.inf)
        fewest[0, begin] = 0

        def allowed(used: int, replicas: int) -> NDArray[numpy.bool_]:
            after = self._after(total - used)
            found: NDArray[numpy.bool_] = (
                self._cost(number, replicas, after, behind, replicas == used) <= limit
            )
            return found

        for used in range(1, total + 1):
            for replicas in self._replicas(used):
                reached = numpy.isfinite(fewest[used - replicas])
                behind_them = fewest[used - replicas][reached, None] + 1
                before = numpy.where(allowed(used, replicas)[reached], behind_them, numpy.inf)
                fewest[used] = numpy.minimum(fewest[used], before.min(axis=0, initial=numpy.inf))
        if fewest[total, end] == numpy.inf:
            return ()
        shares: list[_Share] = []
        used = total
        while used:
            at, replicas = min(
                (int(at), replicas)
                for replicas in self._replicas(used)
                for at in numpy.flatnonzero(allowed(used, replicas)[:, end])
                if fewest[used - replicas, at] + 1 == fewest[used, end]
            )
            shares.insert(0, _Share(at, end, replicas, total - used))
            end = at
            used -= replicas
        return tuple(shares)


def _slower_of(before: Array, stage: Array) -> Array:
    """Return the minimum over s of max(before[i, s], stage[s, j]), (rows, states)."""
    rows, states = before.shape
    if rows == 1:
        slowest: Array = numpy.maximum(before[0, :, None], stage).min(axis=0, keepdims=True)
        return slowest
    result = numpy.full((rows, states), numpy.inf)
    for s in range(1, states):
        # A stage leads to a state of a larger number.
        through = numpy.maximum(before[:s, s, None], stage[s, None, s:])
        numpy.minimum(result[:s, s:], through, out=result[:s, s:])
    return result
