"""The fastest chain of downsets, with accelerators for every stage: a dynamic program by limits.

Is there a placement in which no stage takes longer than a limit? Going from the last downset to the
first, every downset I asks which accelerators suffice for all that is behind it: those of a stage
that begins at I, and those that suffice behind its end. The smallest limit with an answer is the
optimum. It is one of the stages' costs, so it is found exactly: by halving the range first, and
then among the costs that are left in it.

Where accelerators are alike, the fewest that suffice are as good as any number, since more behind
a stage only means more minibatches in flight on it. Otherwise all ways to take them by kind are
kept.

With a memory limit a stage of m replicas and n accelerators behind it has 1 + ⌈(1 + N) n / m⌉
minibatches in flight, with N = 0 for each link by default (pipedream §3.2). Stages on parallel
branches have fewer; the program counts them as if they were in a row.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy

from drlpp.costs.memory import MemoryModel
from drlpp.costs.stage_cost import CostModel, StageSeconds
from drlpp.costs.stage_work import Array
from drlpp.planners.exact.device_groups import Counts, Fleet
from drlpp.planners.exact.stage_pairs import StagePairs
from drlpp.schedule.per_stage import most

_FEW_CANDIDATES = 20_000
"""Costs that are looked at one by one, or by halves; of more, the range is halved."""

ROUNDING = 1e-9
"""The same sum in another order may come out smaller by this."""


@dataclass(frozen=True)
class Chain:
    """Stages (numbers of :class:`StagePairs`), the accelerators of each, the slowest's seconds."""

    stages: tuple[int, ...]
    accelerators: tuple[Counts, ...]
    seconds: float


@dataclass(eq=False)
class ChainSearch(ABC):
    """The search over given stages and a given fleet.

    Args:
        pairs: the stages.
        fleet: the accelerators.
        costs: the rule.
        memory: what a stage keeps.
        side_by_side: count one minibatch in flight for every stage, as if all were branches side
            by side: no placement needs less memory.

    Attributes:
        least: seconds per minibatch that were proven to be needed when the time was over; None if
            the search came to its end.
    """

    pairs: StagePairs
    fleet: Fleet
    costs: CostModel
    memory: MemoryModel
    side_by_side: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.least: float | None = None
        # (choices, stages); a stage's cost depends on few things, so choices share rows.
        groups = [self.fleet.group(counts) for counts in self.fleet.choices]
        row = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        costs, work = self.costs, self.pairs.work
        self._groups = list(row)
        totals = [StageSeconds.of(work, group, costs).total(costs) for group in row]
        self._distinct = numpy.array(totals)
        self._row = numpy.array([row[group] for group in groups])

    def fastest(
        self,
        bound: float = 0.0,
        deadline: float = numpy.inf,
        known: float = numpy.inf,
        precision: float = 0.0,
    ) -> Chain | None:
        """Return the optimum, or None if nothing fits into memory.

        Args:
            bound: seconds per minibatch that the optimum is known to need at least.
            deadline: a moment of :func:`time.monotonic` after which the best so far is returned.
            known: seconds per minibatch that can be kept to, as far as is known.
            precision: how much slower than the optimum, relatively, the result may be.
        """
        # What is known may be of stages that are not looked at.
        best = self.within(known) or self.within(numpy.inf)
        if best is None:
            return None
        return self._improved(best, bound * (1 - ROUNDING), deadline, precision)

    def _improved(self, best: Chain, low: float, deadline: float, precision: float) -> Chain:
        """Try limits below ``best``, among them the least seconds of a stage that can be kept to.

        Args:
            best: a chain.
            low: seconds that cannot be kept to.
            deadline, precision: see :meth:`fastest`.
        """
        high = best.seconds
        candidates = self._distinct.ravel()
        while high > low * (1 + precision):
            candidates = candidates[(candidates > low) & (candidates < high)]
            if not len(candidates):
                break
            if time.monotonic() > deadline:
                self.least = low
                break
            if len(candidates) > _FEW_CANDIDATES:
                limit = (low + high) / 2
            else:
                half = len(candidates) // 2
                limit = float(numpy.partition(candidates, half)[half])
            found = self.within(limit)
            if found is not None:
                best = min(best, found, key=lambda chain: chain.seconds)
            if found is None or found.seconds > limit:
                low = limit
            else:
                high = found.seconds
        return best

    @abstractmethod
    def within(self, limit: float) -> Chain | None:
        """Return a chain none of whose stages takes longer than ``limit`` seconds per minibatch."""

    def _chain(self, stages: list[int], choices: list[int]) -> Chain:
        rows = self._row[choices]
        return Chain(
            stages=tuple(stages),
            accelerators=tuple(self.fleet.choices[choice] for choice in choices),
            seconds=float(self._distinct[rows, stages].max()),
        )

    @cached_property
    def _most_in_flight(self) -> Array:
        """``(choices, stages)``: parts in flight that fit into memory."""
        memory = self.memory
        one, two = (memory.stage_bytes(self.pairs.work, n) for n in (1, 2))
        growth = two - one
        found = []
        for counts in self.fleet.choices:
            spare = self.fleet.memory(counts) - one
            with numpy.errstate(divide="ignore", invalid="ignore"):
                more = numpy.where(growth > 0, numpy.floor(spare / growth), numpy.inf)
            if memory.stashes and memory.parts_of_update > 1:
                more = self._most_more(counts, more)
            found.append(numpy.where(spare < 0, 0.0, 1 + more))
        return numpy.array(found)

    def _most_more(self, counts: Counts, least: Array) -> Array:
        """Return how many parts beyond the first fit, where a version serves several of them.

        As many are looked at as there can be; ``least`` fit if each has a version of its own.
        """
        replicas, limit = sum(counts), self.fleet.memory(counts)
        deepest = -(-self._each * sum(self.fleet.available) // replicas)
        found = least
        for more in range(1, deepest + 1):
            needed = self.memory.stage_bytes(self.pairs.work, 1 + more, replicas)
            found = numpy.where(needed <= limit, numpy.maximum(found, more), found)
        return found

    @property
    def _each(self) -> int:
        """The parts in flight for an accelerator behind a stage."""
        return 1 + most(self.memory.in_flight_per_link)

    @cached_property
    def _most_behind(self) -> Array:
        """``(choices, stages)``: accelerators behind a stage that leave room in its memory.

        1 + ⌈(1 + N) n / m⌉ ≤ q is n ≤ m (q − 1) / (1 + N).
        """
        replicas = numpy.array([sum(counts) for counts in self.fleet.choices])[:, None]
        parts = replicas * (self._most_in_flight - 1)
        room = numpy.inf if self.side_by_side else parts / self._each
        found: Array = numpy.where(self._most_in_flight < 1, -1.0, room)
        return found


class EqualAccelerators(ChainSearch):
    """The search where all accelerators are alike: a choice is a number of replicas."""

    def within(self, limit: float) -> Chain | None:
        """Keep the fewest accelerators that suffice, and of those the fewest stages."""
        pairs, limits_memory = self.pairs, self.fleet.limits_memory
        allowed = (self._distinct <= limit)[self._row]
        first_choice = allowed.argmax(axis=0)
        possible = allowed.any(axis=0)
        replicas = numpy.array([sum(counts) for counts in self.fleet.choices])
        # Accelerators count first, then stages.
        worth = len(pairs.downsets) + 1
        needed = numpy.where(possible, replicas[first_choice] * worth + 1, numpy.inf)
        suffices = numpy.full(len(pairs.downsets), numpy.inf)
        suffices[-1] = 0
        stage_at = numpy.zeros(len(pairs.downsets), dtype=numpy.intp)
        choice_at = numpy.zeros(len(pairs.downsets), dtype=numpy.intp)
        for i in range(len(pairs.downsets) - 2, -1, -1):
            stages = slice(pairs.first[i], pairs.first[i + 1])
            behind = suffices[pairs.end[stages]]
            if limits_memory:
                with_room = allowed[:, stages] & (
                    numpy.floor(behind / worth) <= self._most_behind[:, stages]
                )
                choice = with_room.argmax(axis=0)
                total = numpy.where(with_room.any(axis=0), replicas[choice] * worth + 1, numpy.inf)
                total = total + behind
            else:
                total = needed[stages] + behind
            best = int(total.argmin())
            suffices[i] = total[best]
            stage_at[i] = stages.start + best
            choice_at[i] = choice[best] if limits_memory else first_choice[stages.start + best]
        if numpy.floor(suffices[0] / worth) > self.fleet.available[0]:
            return None
        stages_found, choices_found, at = [], [], 0
        while at < len(pairs.downsets) - 1:
            stages_found.append(int(stage_at[at]))
            choices_found.append(int(choice_at[at]))
            at = int(pairs.end[stage_at[at]])
        return self._chain(stages_found, choices_found)
