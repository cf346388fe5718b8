"""The best cuts of a topological order into stages, for every number of stages.

A stage is a run of operators of one order on a run of accelerators of another, so a placement is a
path from (0 operators, 0 accelerators) to (all operators, some accelerators), every edge of which
is a stage. Wanted is a pace that no stage is slower than by the rule. How many minibatches have to
be in flight for it, which staleness limits, follows from the time that one takes from its begin to
its end: passes, and messages there and back. So a dynamic program by the number of edges finds the
path on which that takes the least.

A tensor that several later stages read counts once for its sender, and memory does not count.
Whoever asks has a judge of the rest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy

from drlpp.costs.stage_cost import Array, Group, Indices, StageSeconds
from drlpp.costs.workload import Workload
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search.moves import PlacementState

_CUTS = 48
_CUTS_OF_LOT = 3
"""So many places of an order are looked at, or so many for each lot of accelerators, if more."""

_LOTS = 16
"""Of more accelerators, several at a time are given to a stage."""


def best_cuts(
    problem: PlanningProblem,
    order: Sequence[int],
    accelerators: Sequence[int],
    limit: float,
    kept: Sequence[int] = (),
) -> list[tuple[PlacementState, list[float]]]:
    """Return the quickest placement for each number of stages, and what its stages add to its time.

    Args:
        problem: with the rule.
        order: all operators, topologically.
        accelerators: in the order in which stages take them; the last may stay idle.
        limit: seconds per minibatch that no stage may take longer than.
        kept: numbers of operators behind which cuts are looked at in any case.
    """
    if not problem.replicate:
        accelerators = accelerators[:_LOTS]
    lots = numpy.array_split(numpy.array(accelerators), min(len(accelerators), _LOTS))
    taken = [0, *numpy.cumsum([len(lot) for lot in lots]).tolist()]
    incoming, outgoing = _crossing(problem.workload, order)
    cuts = _places(problem.workload, order, incoming[0] + outgoing[0], kept, len(lots))
    seconds, lengths = _stages(problem, order, incoming, outgoing, cuts, accelerators, taken)
    lengths[seconds > limit] = math.inf
    # States are places of the order times borders between lots.
    borders = len(taken)
    ends = numpy.arange(len(seconds) - borders, len(seconds))
    length = numpy.full(len(seconds), math.inf)
    length[0] = 0.0
    steps: list[Indices] = []
    found = []
    for _ in lots:
        total = lengths + length
        steps.append(total.argmin(axis=1))
        length = total[numpy.arange(len(total)), steps[-1]]
        path = [int(ends[length[ends].argmin()])]
        if math.isinf(length[path[0]]):
            continue
        for step in reversed(steps):
            path.insert(0, int(step[path[0]]))
        stages = [(cuts[state // borders], taken[state % borders]) for state in path]
        each = [float(lengths[target, source]) for source, target in pairwise(path)]
        found.append((_placement(order, accelerators, stages), each))
    return found


def _crossing(workload: Workload, order: Sequence[int]) -> tuple[Array, Array]:
    """Return the bytes that the operators from i up to j receive and send, each ``(i, j)``.

    All that counts are sums of weights of corners (x, y) with x ≥ i and y < j. With the positions
    of a tensor's members p₁ < p₂ < …, a run holds all of them if p₁ ≥ i and the last is < j, and
    pₐ as the first of its own if pₐ₋₁ < i ≤ pₐ < j. The loss stands behind all operators, in every
    run that ends there.
    """
    size, tensors = len(order), workload.transfer_arrays
    position = numpy.full(size + 1, size)
    position[list(order)] = numpy.arange(size)
    owner = tensors.tensor
    at = position[tensors.member]
    at = at[numpy.lexsort((at, owner))]
    maker = position[tensors.maker]
    counts = numpy.bincount(owner, minlength=len(maker))
    last = numpy.cumsum(counts) - 1
    together = numpy.flatnonzero(owner[1:] == owner[:-1])

    def table(made: Array, read: Array) -> Array:
        """Return sums: ``made`` of tensors that leave their maker's run, ``read`` of others'."""
        corners = numpy.zeros((size + 1, size + 1))
        numpy.add.at(corners, (maker, maker), made - read)
        numpy.add.at(corners, (at[last - counts + 1], at[last]), -made)
        numpy.add.at(corners, (at, at), read[owner])
        numpy.add.at(corners, (at[together], at[together + 1]), -read[owner[together]])
        sums = corners[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)
        # A difference of equal sums may be a little below zero.
        ends = numpy.column_stack([numpy.zeros(size + 1), sums[:, : size - 1], sums[:, size]])
        return numpy.maximum(ends, 0.0)

    forward, backward = tensors.forward_bytes, tensors.backward_bytes
    return table(backward, forward), table(forward, backward)


def _places(
    workload: Workload, order: Sequence[int], alive: Array, kept: Sequence[int], lots: int
) -> list[int]:
    """Return numbers of operators behind which to cut: in every part of the work the narrowest."""
    size, wanted = len(order), max(_CUTS, _CUTS_OF_LOT * lots)
    if size <= wanted:
        return list(range(size + 1))
    done = numpy.cumsum(workload.seconds[list(order)])[:-1]
    part = numpy.floor(wanted * done / max(workload.seconds.sum(), 1e-30))
    narrowest = numpy.lexsort((alive[1:size], part))
    _, first = numpy.unique(part[narrowest], return_index=True)
    return sorted({0, size, *kept, *(narrowest[first] + 1).tolist()})


def _stages(
    problem: PlanningProblem,
    order: Sequence[int],
    incoming: Array,
    outgoing: Array,
    cuts: Sequence[int],
    accelerators: Sequence[int],
    taken: Sequence[int],
) -> tuple[Array, Array]:
    """Return seconds per minibatch of the stage from every state to every other, ``(to, from)``.

    And what it adds to the time that a minibatch takes.
    """
    workload, borders = problem.workload, len(taken)

    def total(values: Array) -> Array:
        sums = numpy.append(0.0, numpy.cumsum(values[list(order)]))[cuts]
        found: Array = sums[:, None] - sums
        return found

    last = numpy.arange(len(cuts)) == len(cuts) - 1
    work = workload.work_of(
        total,
        incoming_bytes=incoming[numpy.ix_(cuts, cuts)].T,
        outgoing_bytes=outgoing[numpy.ix_(cuts, cuts)].T,
        last=numpy.broadcast_to(last[:, None], (len(cuts), len(cuts))),
    )
    groups: dict[Group, int] = {}
    # Zero is no stage.
    group = numpy.zeros((borders, borders), dtype=int)
    for begin, end in combinations(range(borders), 2):
        held = accelerators[taken[begin] : taken[end]]
        if problem.replicate or len(held) == 1:
            beside = [*accelerators[: taken[begin]][-1:], *accelerators[taken[end] :][:1]]
            of_held = Group.of(problem.cluster, tuple(sorted(held)), beside)
            group[end, begin] = groups.setdefault(of_held, len(groups) + 1)
    behind = numpy.tri(len(cuts), k=-1, dtype=bool)
    each = numpy.full((2, len(groups) + 1, *behind.shape), math.inf)
    for of_held, number in groups.items():
        seconds = StageSeconds.of(work, of_held, problem.costs).total(problem.costs)
        link = of_held.link.bandwidth_bytes_per_second
        through = work.seconds / of_held.speed + work.incoming_bytes / link
        each[0, number][behind], each[1, number][behind] = seconds[behind], through[behind]
    states = len(cuts) * borders
    seconds, through = each[:, group].transpose(0, 3, 1, 4, 2).reshape(2, states, states)
    return seconds, through


def _placement(
    order: Sequence[int], accelerators: Sequence[int], path: Sequence[tuple[int, int]]
) -> PlacementState:
    """Return the placement of a path of numbers of operators and of accelerators."""
    stage_of = [0] * len(order)
    holders = []
    for stage, ((first, held), (end, next_held)) in enumerate(pairwise(path)):
        for operator in order[first:end]:
            stage_of[operator] = stage
        holders.append(frozenset(accelerators[held:next_held]))
    return PlacementState(tuple(stage_of), tuple(holders))


def narrow_order(
    workload: Workload, groups: Sequence[Sequence[int]], draw: random.Random, noise: float
) -> list[int]:
    """Draw a topological order that takes one group of operators after the other.

    Args:
        workload: of all operators.
        groups: all operators, none of which needs one of a later group: the stages of a placement,
            or all at once.
        draw: of the noise.
        noise: for how many mean tensors more an operator may be taken for the best; 0 for greedy.
    """
    transfers = workload.transfers
    touching = workload.transfers_of_member
    left = [len(transfer.members) for transfer in transfers]
    unit = noise * sum(transfer.bytes_ for transfer in transfers) / max(len(transfers), 1)
    waits_for = [len(found) for found in workload.predecessors]

    def worth(operator: int) -> float:
        """Return the bytes that it ends, less those that it begins, and noise."""
        ended = 0.0
        for number in touching[operator]:
            transfer = transfers[number]
            if left[number] == len(transfer.members):
                ended -= transfer.bytes_
            elif left[number] == 1:
                ended += transfer.bytes_
        # Gumbel's noise: what is exp(1) times as good is taken exp(1) times as often.
        return ended - unit * math.log(draw.expovariate(1.0)) if unit else ended

    order: list[int] = []
    for group in groups:
        inside = set(group)
        ready = [operator for operator in group if waits_for[operator] == 0]
        while ready:
            # Of equals the one that became ready last goes on where the order was.
            chosen = max(range(len(ready)), key=lambda index: (worth(ready[index]), index))
            operator = ready.pop(chosen)
            order.append(operator)
            for number in touching[operator]:
                left[number] -= 1
            for successor in workload.successors[operator]:
                waits_for[successor] -= 1
                if waits_for[successor] == 0 and successor in inside:
                    ready.append(successor)
    return order
