"""Downsets of a workload, the sets of operators that can stand in the first stages, and the stages
between them.

A set is a downset if it holds, with every operator, all that this one reads. Stages in their order
are the steps of a chain ∅ ⊂ J₁ ⊂ J₂ ⊂ … of downsets, and every such chain is a partition, so a
planner that knows all downsets knows all partitions (Tarnawski et al. 2020, section 5.1).

The work of a stage from I to J ⊃ I, the operators J without I, are sums, which are differences of
sums over downsets; but for what crosses its border. A tensor whose members (the operator that makes
it and those that read it) are the set M crosses the border of S = J \\ I if S holds some of M, but
not all. With 1[·] for "1 if so, else 0",

    S holds none of M  ⇔  M ∩ I = M ∩ J
    S holds all of M   ⇔  M ∩ I = ∅ and M ⊆ J

so the bytes that cross all borders are products of matrices: for every value s that M ∩ I takes, a
column with 1[M ∩ I = s], times the same columns for J.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from drlpp.costs.stage_cost import Array, StageWork
from drlpp.costs.tensors import Transfer
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
        crossing = _Crossing.of(members, workload.transfers)
        begins, ends, incoming, outgoing = [], [], [], []
        for start in range(0, len(downsets), _BLOCK):
            block = slice(start, min(start + _BLOCK, len(downsets)))
            # I ⊂ J if nothing of I is outside of J; a larger set never is.
            nested = held[block] @ (1 - held[start:]).T == 0
            begin, end = numpy.nonzero(nested)
            begin, end = begin + start, end + start
            apart = begin != end
            begin, end = begin[apart], end[apart]
            entering, leaving = crossing.bytes_(block, start)
            begins.append(begin)
            ends.append(end)
            incoming.append(entering[begin - start, end - start])
            outgoing.append(leaving[begin - start, end - start])
        begin, end = numpy.concatenate(begins), numpy.concatenate(ends)

        def between(values: Array) -> Array:
            sums = held @ values
            found: Array = sums[end] - sums[begin]
            return found

        work = workload.work_of(
            between,
            incoming_bytes=numpy.concatenate(incoming),
            outgoing_bytes=numpy.concatenate(outgoing),
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


@dataclass(frozen=True)
class _Crossing:
    """The factors of the products, each ``(downsets, columns)``; see above."""

    transfers: Sequence[Transfer]
    states: Array
    states_owner: Indices
    untouched: Array
    complete: Array
    produced: Array

    @classmethod
    def of(cls, members: NDArray[numpy.bool_], transfers: Sequence[Transfer]) -> _Crossing:
        states, owners = [], []
        for number, transfer in enumerate(transfers):
            inside = members[:, list(transfer.members)]
            _, state = numpy.unique(inside, axis=0, return_inverse=True)
            state = state.reshape(-1)
            for value in range(state.max() + 1):
                states.append(state == value)
                owners.append(number)
        count = len(members)

        def columns(test: Callable[[Transfer], NDArray[numpy.bool_]]) -> Array:
            found = [test(transfer) for transfer in transfers]
            return numpy.hstack(found).astype(float) if found else numpy.zeros((count, 0))

        return cls(
            transfers=transfers,
            states=numpy.column_stack(states).astype(float) if states else numpy.zeros((count, 0)),
            states_owner=numpy.array(owners, dtype=numpy.intp),
            untouched=columns(lambda t: _all(~members[:, list(t.members)])),
            complete=columns(lambda t: _all(members[:, list(t.members)])),
            produced=columns(lambda t: members[:, t.members[:1]]),
        )

    def bytes_(self, block: slice, start: int) -> tuple[Array, Array]:
        """Return incoming and outgoing bytes of stages from ``block`` to downsets behind it."""
        forward = numpy.array([transfer.forward_bytes for transfer in self.transfers])
        backward = numpy.array([transfer.backward_bytes for transfer in self.transfers])

        def touching(bytes_: Array) -> Array:
            """Sum the bytes of tensors of which the stage holds some members, but not all."""
            none = (self.states[block] * bytes_[self.states_owner]) @ self.states[start:].T
            every = (self.untouched[block] * bytes_) @ self.complete[start:].T
            found: Array = bytes_.sum() - none - every
            return found

        def made(bytes_: Array) -> Array:
            """Sum the bytes of tensors that it makes, and of which it does not hold all."""
            sums = self.produced @ bytes_
            every = (self.untouched[block] * bytes_) @ self.complete[start:].T
            found: Array = sums[None, start:] - sums[block, None] - every
            return found

        made_forward, made_backward = made(forward), made(backward)
        read_forward = touching(forward) - made_forward
        read_backward = touching(backward) - made_backward
        return read_forward + made_backward, made_forward + read_backward


def _all(inside: NDArray[numpy.bool_]) -> NDArray[numpy.bool_]:
    """Return in which rows all are true, as a column."""
    return numpy.logical_and.reduce(inside, axis=1, keepdims=True)
