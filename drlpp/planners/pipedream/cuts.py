"""Where a pipeline may be cut: sets of operators that can be computed before all others.

A set can if it holds, with every operator, all that this one reads (a downset). Stages in their
order are the steps of a chain ∅ ⊂ J₁ ⊂ J₂ ⊂ … of such sets (Tarnawski et al. 2020, section 5.1).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import networkx
import numpy

from drlpp.costs.stage_cost import Array, Indices, StageWork
from drlpp.costs.tensors import Flags
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput

_MOST_STATES = 1000

_ROWS = 1 << 14
"""Stages whose operators are looked at at once."""


@dataclass(frozen=True)
class States:
    """Downsets of a workload, the smaller first: with an operator a state holds all before it.

    State 0 is empty and the last one holds everything. A stage leads from a state to a larger one;
    matrices ``[i, j]`` are about the stage of the operators of state j that are not in state i.

    Attributes:
        workload: of the operators.
        holds: which operators each state holds, ``(states, operators)``.
    """

    workload: Workload
    holds: Flags

    @classmethod
    def of(cls, workload: Workload, states: Iterable[Collection[int]]) -> States:
        """Make the states of these sets of operators, none of them empty and none of them all."""
        ordered = sorted(states, key=len)
        holds = numpy.zeros((len(ordered) + 2, len(workload)), dtype=bool)
        holds[-1] = True
        for row, operators in zip(holds[1:], ordered, strict=False):
            row[list(operators)] = True
        return cls(workload, holds)

    def __len__(self) -> int:
        return len(self.holds)

    @cached_property
    def _stages(self) -> tuple[Indices, Indices]:
        held = self.holds.astype(numpy.float32)
        begin, end = numpy.nonzero(held @ (1 - held).T == 0)
        return begin[begin != end], end[begin != end]

    @property
    def begin(self) -> Indices:
        """The state that every stage leads from, ascending."""
        return self._stages[0]

    @property
    def end(self) -> Indices:
        """The state that every stage leads to."""
        return self._stages[1]

    def between(self, values: Array) -> Array:
        """Return the sum of a value of every operator over each stage."""
        begin, end = self._stages
        sums = self.holds.astype(float) @ values
        found: Array = sums[end] - sums[begin]
        return found

    def matrix(self, of_stages: Array, elsewhere: float = 0.0) -> Array:
        """Return a value of every stage as a matrix, (states, states)."""
        found = numpy.full((len(self), len(self)), elsewhere)
        found[self._stages] = of_stages
        return found

    @cached_property
    def work(self) -> StageWork:
        """What every stage does, but for what it needs while it computes."""
        begin, end = self._stages
        # The loss is with the last stage: in the full state, and in no other.
        members = numpy.column_stack([self.holds, self.holds.all(axis=1)])
        incoming, outgoing = self.workload.transfer_arrays.crossing(members, begin, end)
        return self.workload.work_of(
            self.between, incoming_bytes=incoming, outgoing_bytes=outgoing, last=self._last
        )

    @property
    def _last(self) -> Flags:
        """Which stages are the last of a pipeline."""
        last: Flags = self._stages[1] == len(self) - 1
        return last

    @cached_property
    def work_with_limits(self) -> StageWork:
        """The work of all stages, with what they need while they compute, for limits of memory."""
        (begin, end), last = self._stages, self._last
        working = [
            self.workload.working_bytes_of_sets(
                self.holds[end[first : first + _ROWS]] & ~self.holds[begin[first : first + _ROWS]],
                last[first : first + _ROWS],
            )
            for first in range(0, len(end), _ROWS)
        ]
        return replace(self.work, working_bytes=numpy.concatenate(working))

    @cached_property
    def cut_bytes(self) -> Array:
        """What crosses the cut between a state and the rest, activations and gradients; (states,).

        That is 2 a_s in pipedream §3.1, where a tensor has a gradient.
        """
        return self.matrix(self.work.incoming_bytes + self.work.outgoing_bytes)[0]

    def operators(self, begin: int, end: int) -> tuple[int, ...]:
        """Return the operators of the stage from state ``begin`` to state ``end``."""
        return tuple(numpy.flatnonzero(self.holds[end] & ~self.holds[begin]).tolist())


def chain_of_layers(workload: Workload) -> tuple[tuple[int, ...], ...]:
    """Compress the branches of a workload, so that what is left is a chain (pipedream §3.1).

    Cuts are possible only behind articulation points: operators that every path from the inputs
    to the outputs passes. All that stands between two of them, branches and skip connections,
    becomes one layer together with the operator that joins them::

        a ─▶ b ─┬▶ c ─┬▶ e ─▶ f        layers: a │ b │ c d e │ f
                └▶ d ─┘

    Operators behind the last articulation point form the last layer.

    Returns:
        For every layer its operators.
    """
    source, sink = -1, len(workload)
    flow: networkx.DiGraph[int] = networkx.DiGraph()
    flow.add_edges_from(workload.edges)
    predecessors, successors = workload.predecessors, workload.successors
    flow.add_edges_from((source, op) for op, read in enumerate(predecessors) if not read)
    flow.add_edges_from((op, sink) for op, readers in enumerate(successors) if not readers)
    dominator = networkx.immediate_dominators(flow, source)
    points: list[int] = []
    point = dominator[sink]
    while point != source:
        points.insert(0, point)
        point = dominator[point]
    # An operator stands behind the points of which it is a descendant, and before all others; in a
    # topological numbering it is enough to compare the numbers.
    layers: dict[int, list[int]] = {}
    for operator in range(len(workload)):
        layers.setdefault(bisect_left(points, operator), []).append(operator)
    return tuple(tuple(layer) for layer in layers.values())


def chain_states(workload: Workload) -> States:
    """Return the beginnings of the chain of layers."""
    beginnings, held = [], set[int]()
    for layer in chain_of_layers(workload)[:-1]:
        held |= set(layer)
        beginnings.append(tuple(held))
    return States.of(workload, beginnings)


def graph_states(workload: Workload) -> States:
    """Return the states of PipeDream's released optimizer, which may cut through branches.

    They grow from the first source only: to a state comes an operator that reads from it, and all
    that this one needs. So another source, like the embedding of a decoder, joins when one of its
    descendants does. What descends from no operator of a state is left to the last stage.

    Raises:
        InvalidInput: if there are more than a thousand states.
    """
    readers = [_mask_of(operators) for operators in workload.successors]
    needed = _needs_of(workload)
    found, waiting = {1}, [1]
    while waiting:
        state = waiting.pop()
        behind = 0
        for operator in _members_of(state):
            behind |= readers[operator]
        for operator in _members_of(behind & ~state):
            larger = state | needed[operator]
            if larger not in found:
                found.add(larger)
                waiting.append(larger)
        if len(found) > _MOST_STATES:
            raise InvalidInput(
                f"{workload.model} can be cut in more than {_MOST_STATES} places, too many for "
                "PipeDream's planner to try them all; expected a workload with fewer branches side "
                "by side, or cuts of its chain, in which branches are compressed"
            )
    inner = sorted(found - {max(found, key=int.bit_count)})
    return States.of(workload, [tuple(_members_of(state)) for state in inner])


def all_states(workload: Workload, most: int) -> States | None:
    """Return the states of all downsets; None if there are more than ``most``."""
    needs = [_mask_of(workload.predecessors[operator]) for operator in range(len(workload))]
    found, new = {0}, [0]
    while new:
        larger = {
            state | 1 << operator
            for state in new
            for operator, needed in enumerate(needs)
            if not state >> operator & 1 and needed & ~state == 0
        }
        new = list(larger)
        found |= larger
        if len(found) > most:
            return None
    inner = sorted(found - {0, max(found)}, key=lambda mask: (mask.bit_count(), mask))
    return States.of(workload, [tuple(_members_of(state)) for state in inner])


def _mask_of(operators: Iterable[int]) -> int:
    """Return a set of operators as the bits of an integer: small, quick to join and to compare."""
    return sum(1 << operator for operator in operators)


def _members_of(mask: int) -> Iterator[int]:
    """Yield the operators of a set, in order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _needs_of(workload: Workload) -> list[int]:
    """Return for every operator itself and what it needs, directly or not."""
    needed = [1 << operator for operator in range(len(workload))]
    for operator in range(len(workload)):
        for source in workload.predecessors[operator]:
            needed[operator] |= needed[source]
    return needed
