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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy
from numpy.typing import NDArray

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
        totals = [StageSeconds.of(work, group, costs).total(costs) for group in row]
        self._distinct = numpy.array(totals)
        self._row = numpy.array([row[group] for group in groups])

    def fastest(self, bound: float = 0.0, deadline: float = numpy.inf) -> Chain | None:
        """Return the optimum, or None if nothing fits into memory.

        Args:
            bound: seconds per minibatch that the optimum is known to need at least.
            deadline: a moment of :func:`time.monotonic` after which the best so far is returned.
        """
        best = self.within(numpy.inf)
        if best is None:
            return None

        def reached(limit: float) -> float | None:
            nonlocal best
            found = self.within(limit)
            if found is None:
                return None
            best = found
            return found.seconds

        self._bisect(bound * (1 - ROUNDING), best.seconds, reached, deadline)
        return best

    def _bisect(
        self,
        low: float,
        high: float,
        reached: Callable[[float], float | None],
        deadline: float,
    ) -> None:
        """Try limits between two, among them the least seconds of a stage that can be kept to.

        Args:
            low: cannot be kept to.
            high: can be.
            reached: tries a limit; returns the seconds of what keeps to it, None if nothing does.
            deadline: see :meth:`fastest`.
        """
        while True:
            if time.monotonic() > deadline:
                self.least = low
                return
            candidates = self._distinct[(self._distinct > low) & (self._distinct < high)]
            if len(candidates) <= _FEW_CANDIDATES:
                break
            middle = (low + high) / 2
            seconds = reached(middle)
            if seconds is None:
                low = middle
            else:
                high = seconds
        values = numpy.unique(candidates)
        first, last = 0, len(values)
        while first < last:
            if time.monotonic() > deadline:
                self.least = float(values[first - 1]) if first else low
                return
            number = (first + last) // 2
            if reached(values[number]) is None:
                first = number + 1
            else:
                last = number

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


class UnequalAccelerators(ChainSearch):
    """The search where accelerators are of several kinds.

    Ways to take accelerators are bits of a number: those that suffice behind a downset. A stage on
    a choice of accelerators takes these bits, of which those count that leave the choice free, to
    larger numbers by as many as the choice has (:meth:`Fleet.index`). Stages that may stand on
    groups that cost alike are looked at together.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        fleet = self.fleet
        self._words = -(-fleet.states // 64)
        self._offsets = [fleet.index(counts) for counts in fleet.choices]
        self._fits = [_bits(fits) for fits in fleet.fits]
        # Which ways take no more than so many accelerators.
        most = sum(fleet.available)
        self._up_to = self._packed([_bits(fleet.sizes <= size) for size in range(-1, most + 1)])

    def within(self, limit: float) -> Chain | None:
        """Keep every way to take accelerators, by kind, that suffices."""
        pairs, fleet = self.pairs, self.fleet
        allowed = self._distinct <= limit
        reached = numpy.zeros((len(pairs.downsets), self._words), dtype=numpy.uint64)
        reached[-1] = self._packed([1])
        for i in range(len(pairs.downsets) - 2, -1, -1):
            stages = slice(int(pairs.first[i]), int(pairs.first[i + 1]))
            ways = 0
            for choice, behind in self._behind(allowed[:, stages], reached, stages):
                ways |= (behind & self._fits[choice]) << self._offsets[choice]
            if ways:
                reached[i] = self._packed([ways])
        found = self._number(reached[0])
        if not found:
            return None
        ends = [state for state in range(fleet.states) if found >> state & 1]
        return self._trace(allowed, reached, min(ends, key=lambda state: fleet.sizes[state]))

    def _behind(
        self, allowed: NDArray[numpy.bool_], reached: NDArray[numpy.uint64], stages: slice
    ) -> Iterator[tuple[int, int]]:
        """Yield for every choice the ways behind stages that may stand on it."""
        ends = self.pairs.end[stages]
        if self.fleet.limits_memory:
            for choice, row in enumerate(self._row):
                ok = allowed[row]
                if ok.any():
                    # Infinite where any number behind leaves room.
                    room = numpy.minimum(self._most_behind[choice, stages][ok], len(self._up_to))
                    sizes = numpy.minimum(numpy.floor(room).astype(int) + 1, len(self._up_to) - 1)
                    with_room = reached[ends[ok]] & self._up_to[sizes]
                    yield choice, self._number(numpy.bitwise_or.reduce(with_room, axis=0))
            return
        together = [
            self._number(numpy.bitwise_or.reduce(reached[ends[ok]], axis=0)) if ok.any() else 0
            for ok in allowed
        ]
        for choice, row in enumerate(self._row):
            if together[row]:
                yield choice, together[row]

    def _packed(self, numbers: Sequence[int]) -> NDArray[numpy.uint64]:
        """Return numbers as rows of words."""
        bytes_ = b"".join(number.to_bytes(8 * self._words, "little") for number in numbers)
        return numpy.frombuffer(bytes_, dtype="<u8").reshape(len(numbers), self._words)

    @staticmethod
    def _number(words: NDArray[numpy.uint64]) -> int:
        return int.from_bytes(words.tobytes(), "little")

    def _trace(
        self, allowed: NDArray[numpy.bool_], reached: NDArray[numpy.uint64], state: int
    ) -> Chain:
        """Return one way through the program that ends in ``state``, with long stages first."""
        pairs, fleet = self.pairs, self.fleet
        stages_found, choices_found, at = [], [], 0
        while at < len(pairs.downsets) - 1:
            stages = slice(int(pairs.first[at]), int(pairs.first[at + 1]))
            found = None
            for choice, row in enumerate(self._row):
                before = state - self._offsets[choice]
                if before < 0 or not self._fits[choice] >> before & 1:
                    continue
                word, bit = divmod(before, 64)
                behind = reached[pairs.end[stages], word] >> numpy.uint64(bit) & numpy.uint64(1)
                good = allowed[row, stages] & (behind > 0)
                if fleet.limits_memory:
                    good &= fleet.sizes[before] <= self._most_behind[choice, stages]
                positions = numpy.flatnonzero(good)
                if len(positions):
                    found = (stages.start + int(positions[-1]), choice, before)
                    break
            assert found is not None
            stage, choice, state = found
            stages_found.append(stage)
            choices_found.append(choice)
            at = int(pairs.end[stage])
        return self._chain(stages_found, choices_found)


def _bits(flags: NDArray[numpy.bool_]) -> int:
    """Return flags as the bits of a number."""
    return int.from_bytes(numpy.packbits(flags, bitorder="little").tobytes(), "little")
