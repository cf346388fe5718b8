"""Where a pipeline may be cut: sets of operators that can be computed before all others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import networkx
import numpy
from numpy.typing import NDArray

from drlpp.costs.stage_cost import Array, StageWork
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.planners.problem import closures, mask_of, members_of

_MOST_STATES = 1000


@dataclass(frozen=True)
class States:
    """Downsets of a workload, the smaller first: with an operator a state holds all before it.

    State 0 is empty and the last one holds everything. A stage leads from a state to a larger one;
    matrices ``[i, j]`` are about the stage of the operators of state j that are not in state i.

    Attributes:
        workload: whose operators they hold.
        holds: (states, operators) whether a state holds an operator.
        cut_bytes: (states,) what crosses the cut between a state and the rest, activations and
            gradients: 2 a_s in pipedream §3.1, where a tensor has a gradient.
    """

    workload: Workload
    holds: NDArray[numpy.bool_]
    cut_bytes: Array

    @classmethod
    def of(cls, workload: Workload, states: Iterable[Collection[int]]) -> States:
        """Make the states of these sets of operators, none of them empty and none of them all."""
        ordered = sorted(states, key=len)
        holds = numpy.zeros((len(ordered) + 2, len(workload)), dtype=bool)
        holds[-1] = True
        for row, operators in zip(holds[1:], ordered, strict=False):
            row[list(operators)] = True
        counts, crossing = _counts(holds), numpy.zeros(len(holds))
        for transfer in workload.transfers:
            held = counts[:, list(transfer.members)].sum(axis=1)
            crossing[(held > 0) & (held < len(transfer.members))] += transfer.bytes_
        return cls(workload, holds, crossing)

    def __len__(self) -> int:
        return len(self.holds)

    @cached_property
    def is_stage(self) -> NDArray[numpy.bool_]:
        """(states, states) whether state i is a part of state j and not the same."""
        sizes = self.holds.sum(axis=1)
        beyond = self.holds.astype(float) @ ~self.holds.T
        return (beyond == 0) & (sizes[:, None] < sizes[None, :])

    def sums(self, values: Array) -> Array:
        """Sum operators' values over every stage, (states, states); 0 where there is none."""
        totals = self.holds @ values
        return numpy.where(self.is_stage, totals[None, :] - totals[:, None], 0.0)

    @cached_property
    def work(self) -> StageWork:
        """What every stage does: ``Workload.stage`` of all of them at once, but working bytes."""
        counts = _counts(self.holds)
        incoming, outgoing = numpy.zeros((2, len(self), len(self)))
        for transfer in self.workload.transfers:
            held = counts[:, list(transfer.members)].sum(axis=1)
            inside = held[None, :] - held[:, None]
            crosses = (inside > 0) & (inside < len(transfer.members))
            made = counts[:, transfer.members[0]]
            made_here = crosses & (made[None, :] > made[:, None])
            read_here = crosses & ~made_here
            outgoing += made_here * transfer.forward_bytes + read_here * transfer.backward_bytes
            incoming += made_here * transfer.backward_bytes + read_here * transfer.forward_bytes
        return self.workload.work_of(
            self.sums,
            incoming_bytes=incoming,
            outgoing_bytes=outgoing,
            last=numpy.arange(len(self))[None, :] == len(self) - 1,
        )

    @cached_property
    def work_with_limits(self) -> StageWork:
        """The same, with what stages need while they compute, for limits of memory."""
        working = numpy.zeros((len(self), len(self)))
        for begin, ends in enumerate(self.is_stage):
            inside = self.holds[ends] & ~self.holds[begin]
            last = numpy.flatnonzero(ends) == len(self) - 1
            working[begin, ends] = self.workload.working_bytes_of_sets(inside, last)
        return replace(self.work, working_bytes=working)

    def operators(self, begin: int, end: int) -> tuple[int, ...]:
        """Return the operators of the stage from state ``begin`` to state ``end``."""
        return tuple(numpy.flatnonzero(self.holds[end] & ~self.holds[begin]).tolist())


def _counts(holds: NDArray[numpy.bool_]) -> NDArray[numpy.int64]:
    """Return ``holds`` as numbers, with a column for the loss, which only the last holds."""
    loss = numpy.zeros((len(holds), 1), dtype=numpy.int64)
    loss[-1] = 1
    return numpy.concatenate((holds.astype(numpy.int64), loss), axis=1)


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
    flow = workload.order()
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
    readers = [mask_of(operators) for operators in workload.successors]
    needed, _ = closures(workload)
    found, waiting = {1}, [1]
    while waiting:
        state = waiting.pop()
        behind = 0
        for operator in members_of(state):
            behind |= readers[operator]
        for operator in members_of(behind & ~state):
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
    return States.of(workload, [tuple(members_of(state)) for state in inner])
