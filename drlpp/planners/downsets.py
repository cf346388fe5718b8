"""Downsets of a workload, the sets of operators that can stand in the first stages, and the stages
between them.

A set is a downset if it holds, with every operator, all that this one reads. Stages in their order
are the steps of a chain ∅ ⊂ J₁ ⊂ J₂ ⊂ … of downsets, and every such chain is a partition, so a
planner that knows all downsets knows all partitions (Tarnawski et al. 2020, section 5.1).

The work of a stage from I to J ⊃ I, the operators J without I, are differences of sums over
downsets; but for what crosses its border (:meth:`drlpp.costs.tensors.TransferArrays.crossing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from drlpp.costs.stage_cost import Array, StageWork
from drlpp.costs.workload import Workload

Downsets = NDArray[numpy.bool_]
"""``(downsets, operators)``: which operators each holds; the smallest first."""

Indices = NDArray[numpy.intp]

_BLOCK = 512
_ROWS = 1 << 14


def all_downsets(workload: Workload, most: int) -> Downsets | None:
    """Return every downset, the empty and the full one included; None if there are more."""
    needs = [mask_of(workload.predecessors[operator]) for operator in range(len(workload))]
    found = {0}
    frontier = [0]
    while frontier:
        larger = set()
        for downset in frontier:
            for operator, needed in enumerate(needs):
                if not downset >> operator & 1 and needed & ~downset == 0:
                    larger.add(downset | 1 << operator)
        frontier = list(larger)
        found |= larger
        if len(found) > most:
            return None
    return _as_matrix(found, len(workload))


def _as_matrix(masks: Iterable[int], operators: int) -> Downsets:
    width = -(-operators // 8)
    ordered = sorted(masks, key=lambda mask: (mask.bit_count(), mask))
    packed = b"".join(mask.to_bytes(width, "little") for mask in ordered)
    rows = numpy.frombuffer(packed, dtype=numpy.uint8).reshape(len(ordered), width)
    return numpy.unpackbits(rows, axis=1, count=operators, bitorder="little").astype(bool)


def mask_of(operators: Iterable[int]) -> int:
    """Return a set of operators as the bits of an integer: small, quick to join and to compare."""
    return sum(1 << operator for operator in operators)


def members_of(mask: int) -> Iterator[int]:
    """Yield the operators of a set, in order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def needs_of(workload: Workload) -> list[int]:
    """Return for every operator itself and what it needs, directly or not."""
    needed = [1 << operator for operator in range(len(workload))]
    for operator in range(len(workload)):
        for source in workload.predecessors[operator]:
            needed[operator] |= needed[source]
    return needed


@dataclass(frozen=True, eq=False)
class StagePairs:
    """All stages between some downsets, ordered by the downset that they begin with.

    Attributes:
        downsets: the smallest first; the first is empty and the last full.
        begin, end: indices of I and J for every stage.
        work: arrays with a value for every stage.
        first: stages that begin with downset i are numbers ``first[i]`` to ``first[i + 1]`` − 1.
    """

    downsets: Downsets
    begin: Indices
    end: Indices
    work: StageWork
    first: Indices

    @classmethod
    def of(cls, workload: Workload, downsets: Downsets) -> StagePairs:
        """Find all pairs and their work."""
        held = downsets.astype(float)
        # The loss is with the last stage: in the full downset, and in no other.
        members = numpy.column_stack([downsets, downsets.all(axis=1)])
        # The smallest first: what a downset is in comes behind it.
        pairs = [
            numpy.stack(numpy.nonzero(held[start : start + _BLOCK] @ (1 - held[start:]).T == 0))
            + start
            for start in range(0, len(downsets), _BLOCK)
        ]
        begin, end = numpy.concatenate(pairs, axis=1)
        begin, end = begin[begin != end], end[begin != end]
        incoming, outgoing = workload.transfer_arrays.crossing(members, begin, end)

        def between(values: Array) -> Array:
            sums = held @ values
            found: Array = sums[end] - sums[begin]
            return found

        work = workload.work_of(
            between,
            incoming_bytes=incoming,
            outgoing_bytes=outgoing,
            last=end == len(downsets) - 1,
        )
        first = numpy.searchsorted(begin, numpy.arange(len(downsets) + 1))
        return cls(downsets, begin, end, work, first)

    def __len__(self) -> int:
        return len(self.begin)

    def with_working_bytes(self, workload: Workload) -> StagePairs:
        """Return the same, with what stages need while they compute, for limits of memory."""
        found = numpy.zeros(len(self))
        last = self.end == len(self.downsets) - 1
        for start in range(0, len(self), _ROWS):
            rows = slice(start, start + _ROWS)
            inside = self.downsets[self.end[rows]] & ~self.downsets[self.begin[rows]]
            found[rows] = workload.working_bytes_of_sets(inside, last[rows])
        return replace(self, work=replace(self.work, working_bytes=found))
