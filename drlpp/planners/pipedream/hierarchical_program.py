"""PipeDream's dynamic program over the levels of a cluster (pipedream §3.1).

On level k, with T from a :class:`~drlpp.planners.pipedream.formulas.Formula`:

    A(i → j, m) = min( T(i → j, m),
                       min over s, m' < m of max(A(i → s, m − m'), T(s → j, m') and its cuts) )

where i, s and j are states, and T builds on A(i → j, all) of a component of level k − 1. A stage on
m components is a pipeline in each of them, and stage by stage these are replicas of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from drlpp.costs.stage_work import Array
from drlpp.planners.pipedream.formulas import Formula
from drlpp.planners.pipedream.levels import Level

# Equal costs may differ by the rounding of sums.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class PlannedStage:
    """States ``begin`` to ``end``, on accelerators counted from the component's first."""

    begin: int
    end: int
    accelerators: tuple[int, ...]


class Share(NamedTuple):
    """A stage of one level: states, ``replicas`` components of it, and those ``after`` it."""

    begin: int
    end: int
    replicas: int
    after: int


class HierarchicalProgram:
    """The best pipelines between all pairs of states by one formula.

    Every component uses all that it consists of. Where stages are not to be replicated, there may
    be more accelerators than a pipeline has use for, and it uses as many as are best.

    Among plans of equal cost the choice is always the same. On the outermost level, fewer stages
    are preferred, then earlier cuts (the last cut first), then more replicas for earlier stages.
    Within every stage the same holds for the level below.

    Args:
        formula: the costs.
        levels: of the cluster, the innermost first.
        states: the number of states.
        replicate: whether a stage may have several replicas.
    """

    def __init__(
        self, formula: Formula, levels: tuple[Level, ...], states: int, replicate: bool
    ) -> None:
        self._formula = formula
        self._levels = levels
        self._states = states
        self._replicate = replicate
        # They hold what they return as long as this program lives.
        self._component = cache(self._find_component)
        self._stage = cache(self._find_stage)

    def best(self) -> float:
        """Return A over all states on the whole cluster; infinite if no pipeline is allowed."""
        top = len(self._levels)
        rows = [self._table(top, Fraction(0), total, 1)[total] for total in self._totals(top)]
        return float(min(row[0, -1] for row in rows))

    def plan(self) -> tuple[PlannedStage, ...]:
        """Return the stages of the best pipeline, in order."""
        limit = self.best() * (1 + _TOLERANCE)
        return self._plan(len(self._levels), 0, self._states - 1, Fraction(0), limit)

    def outermost(self) -> tuple[Share, ...]:
        """Return the stages of the best pipeline as the outermost level has them."""
        limit = self.best() * (1 + _TOLERANCE)
        return self._shares(len(self._levels), 0, self._states - 1, Fraction(0), limit)

    def _totals(self, number: int) -> range:
        components = self._levels[number - 1].components
        return range(components if self._replicate else 1, components + 1)

    def _replicas(self, available: int) -> range:
        return range(1, (available if self._replicate else min(available, 1)) + 1)

    def _find_component(self, number: int, behind: Fraction) -> Array:
        """Return A(i → j, all) of level ``number``.

        ``behind`` accelerators follow each such component.
        """
        if number == 0:
            return self._formula.single(behind)
        tables = [
            self._table(number, behind, total, self._states)[total]
            for total in self._totals(number)
        ]
        return numpy.minimum.reduce(tables)

    def _find_stage(
        self, number: int, replicas: int, after: int, behind: Fraction, first: bool
    ) -> Array:
        inner = self._component(number - 1, self._behind(number, replicas, after, behind))
        return self._formula.stage(self._levels[number - 1], replicas, after, inner, first)

    def _cost(self, number: int, replicas: int, after: int, behind: Fraction, first: bool) -> Array:
        after *= self._formula.knows_what_follows
        return self._stage(number, replicas, after, behind, first)

    def _behind(self, number: int, replicas: int, after: int, behind: Fraction) -> Fraction:
        """Return the accelerators behind each of the components that hold a stage, by replica."""
        if not self._formula.knows_what_follows:
            return Fraction(0)
        return (after * self._levels[number - 1].size + behind) / replicas

    def _table(self, number: int, behind: Fraction, total: int, rows: int) -> list[Array]:
        """Return A(i → j, m) for m = 0 … total and i < ``rows``.

        ``total`` components are used in the end.
        """
        table = [numpy.full((rows, self._states), numpy.inf)]
        for used in range(1, total + 1):
            after = total - used
            best = table[0]
            for replicas in self._replicas(used):
                first = replicas == used
                cost = self._cost(number, replicas, after, behind, first)
                if first:
                    best = numpy.minimum(best, cost[:rows])
                else:
                    best = numpy.minimum(best, _slower_of(table[used - replicas], cost))
            table.append(best)
        return table

    def _plan(
        self, number: int, begin: int, end: int, behind: Fraction, limit: float
    ) -> tuple[PlannedStage, ...]:
        """Return the stages between two states on a component of level ``number``."""
        if number == 0:
            return (PlannedStage(begin, end, (0,)),)
        level = self._levels[number - 1]
        stages, used = [], 0
        for share in self._shares(number, begin, end, behind, limit):
            inner_behind = self._behind(number, share.replicas, share.after, behind)
            inner_limit = self._formula.inner_limit(
                level, share.replicas, (share.begin, share.end), share.begin == begin, limit
            )
            inner = self._plan(number - 1, share.begin, share.end, inner_behind, inner_limit)
            bases = [(used + replica) * level.size for replica in range(share.replicas)]
            for stage in inner:
                accelerators = (base + offset for base in bases for offset in stage.accelerators)
                stages.append(PlannedStage(stage.begin, stage.end, tuple(accelerators)))
            used += share.replicas
        return tuple(stages)

    def _shares(
        self, number: int, begin: int, end: int, behind: Fraction, limit: float
    ) -> tuple[Share, ...]:
        """Return the stages of one level, none of which costs more than ``limit``."""
        found = [
            self._fewest(number, begin, end, behind, limit, total) for total in self._totals(number)
        ]
        # Only unreplicated stages leave a choice of totals, and then a total is a number of stages.
        return min((shares for shares in found if shares), key=len)

    def _fewest(
        self, number: int, begin: int, end: int, behind: Fraction, limit: float, total: int
    ) -> tuple[Share, ...]:
        """Return the fewest stages on exactly ``total`` components; none if that cannot be.

        A maximum hides what its smaller terms cost, so this is a second program, over the stages
        that are as fast as the best plan needs them.
        """
        fewest = numpy.full((total + 1, self._states), numpy.inf)
        fewest[0, begin] = 0
        allowed: dict[tuple[int, int], NDArray[numpy.bool_]] = {}
        for used in range(1, total + 1):
            for replicas in self._replicas(used):
                cost = self._cost(number, replicas, total - used, behind, replicas == used)
                may_be = allowed[used, replicas] = cost <= limit
                before = numpy.where(may_be, fewest[used - replicas][:, None] + 1, numpy.inf)
                fewest[used] = numpy.minimum(fewest[used], before.min(axis=0))
        if fewest[total, end] == numpy.inf:
            return ()
        shares: list[Share] = []
        used = total
        while used:
            at, replicas = min(
                (int(at), replicas)
                for replicas in self._replicas(used)
                for at in numpy.flatnonzero(allowed[used, replicas][:, end])
                if fewest[used - replicas, at] + 1 == fewest[used, end]
            )
            shares.insert(0, Share(at, end, replicas, total - used))
            end = at
            used -= replicas
        return tuple(shares)


def _slower_of(before: Array, stage: Array) -> Array:
    """Return the minimum over s of max(before[i, s], stage[s, j]), (rows, states)."""
    rows, states = before.shape
    result = numpy.full((rows, states), numpy.inf)
    for s in range(1, states):
        # A stage leads to a state of a larger number.
        through = numpy.maximum(before[:s, s, None], stage[s, None, s:])
        numpy.minimum(result[:s, s:], through, out=result[:s, s:])
    return result
