"""Where a pipeline may be cut: sets of operators that can be computed before all others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import networkx
import numpy

from drlpp.costs.stage_cost import Array, StageWork
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.planners.downsets import StagePairs, mask_of, members_of, needs_of

_MOST_STATES = 1000


@dataclass(frozen=True)
class States:
    """Downsets of a workload, the smaller first: with an operator a state holds all before it.

    State 0 is empty and the last one holds everything. A stage leads from a state to a larger one;
    matrices ``[i, j]`` are about the stage of the operators of state j that are not in state i.
    """

    workload: Workload
    pairs: StagePairs

    @classmethod
    def of(
        cls, workload: Workload, states: Iterable[Collection[int]], together: bool = False
    ) -> States:
        """Make the states of these sets of operators, none of them empty and none of them all.

        Those that divide the operators that share weights are left out if these stay ``together``.
        """
        ordered = sorted(states, key=len)
        holds = numpy.zeros((len(ordered) + 2, len(workload)), dtype=bool)
        holds[-1] = True
        for row, operators in zip(holds[1:], ordered, strict=False):
            row[list(operators)] = True
        if together:
            holds = holds[~workload.divides_ties(holds)]
        return cls(workload, StagePairs.of(workload, holds))

    def __len__(self) -> int:
        return len(self.pairs.downsets)

    def matrix(self, of_stages: Array, elsewhere: float = 0.0) -> Array:
        """Return a value of every stage as a matrix, (states, states)."""
        found = numpy.full((len(self), len(self)), elsewhere)
        found[self.pairs.begin, self.pairs.end] = of_stages
        return found

    @cached_property
    def cut_bytes(self) -> Array:
        """What crosses the cut between a state and the rest, activations and gradients; (states,).

        That is 2 a_s in pipedream §3.1, where a tensor has a gradient.
        """
        crossing = self.pairs.work.incoming_bytes + self.pairs.work.outgoing_bytes
        return self.matrix(crossing)[0]

    @cached_property
    def work_with_limits(self) -> StageWork:
        """The work of all stages, with what they need while they compute, for limits of memory."""
        return self.pairs.with_working_bytes(self.workload).work

    def operators(self, begin: int, end: int) -> tuple[int, ...]:
        """Return the operators of the stage from state ``begin`` to state ``end``."""
        holds = self.pairs.downsets
        return tuple(numpy.flatnonzero(holds[end] & ~holds[begin]).tolist())


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


def chain_states(workload: Workload, together: bool = False) -> States:
    """Return the beginnings of the chain of layers."""
    beginnings, held = [], set[int]()
    for layer in chain_of_layers(workload)[:-1]:
        held |= set(layer)
        beginnings.append(tuple(held))
    return States.of(workload, beginnings, together)


def graph_states(workload: Workload, together: bool = False) -> States:
    """Return the states of PipeDream's released optimizer, which may cut through branches.

    They grow from the first source only: to a state comes an operator that reads from it, and all
    that this one needs. So another source, like the embedding of a decoder, joins when one of its
    descendants does. What descends from no operator of a state is left to the last stage.

    Raises:
        InvalidInput: if there are more than a thousand states.
    """
    readers = [mask_of(operators) for operators in workload.successors]
    needed = needs_of(workload)
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
    return States.of(workload, [tuple(members_of(state)) for state in inner], together)
