"""The fastest chain of downsets where accelerators are of several kinds.

Ways to take accelerators are bits of a number: those that suffice behind a downset. A stage on a
choice of accelerators takes these bits, of which those count that leave the choice free, to larger
numbers by as many as the choice has (:meth:`Fleet.index`). Stages that may stand on groups that
cost alike are looked at together, and so are all that begin with downsets of one size: none of them
is behind another.

A stage costs the same on all groups with as many accelerators and the same slowest kind. Without a
memory limit it needs to be looked at on the smallest group for each slowest kind only: whatever
suffices with a larger one also does with a part of it, and fewer are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy
from numpy.typing import NDArray

from drlpp.planners.exact.chain_search import Chain, ChainSearch

_Flags = NDArray[numpy.bool_]
_Words = NDArray[numpy.uint64]


class UnequalAccelerators(ChainSearch):
    """The search where accelerators are of several kinds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fleet = self.fleet
        self._words = -(-fleet.states // 64)
        self._offsets = [fleet.index(counts) for counts in fleet.choices]
        self._fits = [_bits(fits) for fits in fleet.fits]
        # Which ways take no more than so many accelerators.
        most = sum(fleet.available)
        self._up_to = self._packed([_bits(fleet.sizes <= size) for size in range(-1, most + 1)])
        sizes = self.pairs.downsets.sum(axis=1)
        self._levels = numpy.flatnonzero(numpy.diff(sizes, prepend=-1, append=sizes[-1] + 1))

    def within(self, limit: float) -> Chain | None:
        """Keep every way to take accelerators, by kind, that suffices."""
        pairs, fleet = self.pairs, self.fleet
        allowed = self._smallest(self._distinct <= limit)
        reached = numpy.zeros((len(pairs.downsets), self._words), dtype=numpy.uint64)
        reached[-1] = self._packed([1])
        for level in reversed(range(len(self._levels) - 2)):
            first, last = self._levels[level : level + 2]
            ways = [0] * (last - first)
            for choice, begins, behind in self._behind(allowed, reached, first, last):
                fits, offset = self._fits[choice], self._offsets[choice]
                for begin, free in zip(begins, behind, strict=True):
                    ways[begin] |= (free & fits) << offset
            reached[first:last] = self._packed(ways)
        found = self._number(reached[0])
        if not found:
            return None
        ends = [state for state in range(fleet.states) if found >> state & 1]
        return self._trace(allowed, reached, min(ends, key=lambda state: fleet.sizes[state]))

    def _smallest(self, allowed: _Flags) -> _Flags:
        """Return of ``(rows, stages)`` those on the smallest groups, where these suffice."""
        if self.fleet.limits_memory or self.fleet.most_choices is not None:
            # Fewer replicas hold more minibatches each; and a part of a choice may be left out.
            return allowed
        seen: dict[float, _Flags] = {}
        for row, group in enumerate(self._groups):
            smaller = seen.setdefault(group.speed, numpy.zeros_like(allowed[row]))
            allowed[row] &= ~smaller
            smaller |= allowed[row]
        return allowed

    def _behind(
        self, allowed: _Flags, reached: _Words, first: int, last: int
    ) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield what suffices behind stages that begin with downsets ``first`` to ``last`` − 1.

        That is for every choice: the numbers of downsets, from ``first``, with stages that may
        stand on it, and the ways that are left behind these stages.
        """
        pairs, memory = self.pairs, self.fleet.limits_memory
        start, end = int(pairs.first[first]), int(pairs.first[last])
        ways: dict[int, tuple[list[int], list[int]]] = {}
        for choice, row in enumerate(self._row):
            if memory or row not in ways:
                stages = start + numpy.flatnonzero(allowed[row, start:end])
                behind = reached[pairs.end[stages]]
                if memory:
                    # Infinite where any number behind leaves room.
                    room = numpy.minimum(self._most_behind[choice, stages], len(self._up_to))
                    sizes = numpy.floor(room).astype(int) + 1
                    behind = behind & self._up_to[numpy.minimum(sizes, len(self._up_to) - 1)]
                begins = pairs.begin[stages] - first
                starts = numpy.flatnonzero(numpy.diff(begins, prepend=-1))
                together = numpy.bitwise_or.reduceat(behind, starts) if len(starts) else behind
                ways[row] = begins[starts].tolist(), [self._number(one) for one in together]
            yield choice, *ways[row]

    def _packed(self, numbers: Sequence[int]) -> _Words:
        """Return numbers as rows of words."""
        bytes_ = b"".join(number.to_bytes(8 * self._words, "little") for number in numbers)
        return numpy.frombuffer(bytes_, dtype="<u8").reshape(len(numbers), self._words)

    @staticmethod
    def _number(words: _Words) -> int:
        return int.from_bytes(words.tobytes(), "little")

    def _trace(self, allowed: _Flags, reached: _Words, state: int) -> Chain:
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
