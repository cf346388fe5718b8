"""The best cuts of a topological order into stages, for every number of stages.

A stage is a run of operators of one order on some accelerators, so a placement is a path from (no
operators, no accelerators) to (all operators, some accelerators), every edge of which is a stage.
Accelerators are taken in an order as well, or, of few unlike kinds, so many of each. Wanted is a
pace that no stage is slower than by the rule. How many minibatches have to be in flight for it,
which staleness limits, follows from the time that one takes from its begin to its end: passes, and
messages there and back. So a dynamic program by the number of edges finds the path on which that
takes the least; or that whose slowest stage is the fastest.

A tensor that several later stages read counts once for its sender, and memory does not count.
Whoever asks has a judge of the rest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import combinations, pairwise, product
from typing import NamedTuple

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

_BORDERS = 32
"""With more, accelerators of unlike kinds are not taken in any order."""


class Held(NamedTuple):
    """What a stage between two borders stands on, and which accelerators are next to it."""

    accelerators: tuple[int, ...]
    beside: tuple[int, ...]


Turns = dict[tuple[int, int], Held]
"""Stages that can follow each other, by the borders where they begin and end; the first is 0."""


def best_cuts(
    problem: PlanningProblem,
    order: Sequence[int],
    turns: Turns,
    limit: float | None = None,
    kept: Sequence[int] = (),
) -> list[tuple[PlacementState, list[float]]]:
    """Return the quickest placement for each number of stages, and what its stages add to its time.

    Args:
        problem: with the rule.
        order: all operators, topologically.
        turns: of :func:`taken_in_turns` or :func:`taken_by_kind`.
        limit: seconds per minibatch that no stage may take longer than; None for those with the
            fastest slowest stage instead.
        kept: numbers of operators behind which cuts are looked at in any case.
    """
    borders = 1 + max(end for _, end in turns)
    longest = min(borders - 1, len({one for held in turns.values() for one in held.accelerators}))
    size, tensors = len(order), problem.workload.transfer_arrays
    turn = numpy.full(size + 1, size - 1)
    turn[list(order)] = numpy.arange(size)
    number = numpy.arange(size + 1)
    # What the first so many operators are; the loss comes with the last.
    sets = turn < number[:, None]
    received, sent = tensors.crossing(sets, 0 * number, number)
    cuts = _places(problem.workload, order, received + sent, kept, longest)
    first, last = numpy.triu_indices(len(cuts), 1)
    crossing = numpy.zeros((2, len(cuts), len(cuts)))
    crossing[:, last, first] = tensors.crossing(sets[cuts], first, last)
    seconds, lengths = _stages(problem, order, crossing, cuts, turns, borders)
    if limit is not None:
        lengths[seconds > limit] = math.inf
    # States are places of the order times borders.
    ends = numpy.arange(len(seconds) - borders, len(seconds))
    length = numpy.full(len(seconds), math.inf)
    length[0] = 0.0
    steps: list[Indices] = []
    found = []
    for _ in range(longest):
        total = numpy.maximum(seconds, length) if limit is None else lengths + length
        steps.append(total.argmin(axis=1))
        length = total[numpy.arange(len(total)), steps[-1]]
        path = [int(ends[length[ends].argmin()])]
        if math.isinf(length[path[0]]):
            continue
        for step in reversed(steps):
            path.insert(0, int(step[path[0]]))
        edges = [(*divmod(a, borders), *divmod(b, borders)) for a, b in pairwise(path)]
        stages = [
            (order[cuts[first] : cuts[last]], frozenset(turns[begin, end].accelerators))
            for first, begin, last, end in edges
        ]
        each = [float(lengths[target, source]) for source, target in pairwise(path)]
        found.append((_placement(stages), each))
    return found


def taken_in_turns(problem: PlanningProblem, accelerators: Sequence[int]) -> Turns:
    """Let stages take accelerators in the order given; the last may stay idle."""
    if not problem.replicate:
        accelerators = accelerators[:_LOTS]
    lots = numpy.array_split(numpy.array(accelerators), min(len(accelerators), _LOTS))
    taken = [0, *numpy.cumsum([len(lot) for lot in lots]).tolist()]
    found = {}
    for begin, end in combinations(range(len(taken)), 2):
        held = tuple(accelerators[taken[begin] : taken[end]])
        if problem.replicate or len(held) == 1:
            beside = (*accelerators[: taken[begin]][-1:], *accelerators[taken[end] :][:1])
            found[begin, end] = Held(held, beside)
    return found


def taken_by_kind(problem: PlanningProblem) -> Turns | None:
    """Let stages take accelerators in any order; None if all are equally fast, or of many kinds.

    A kind is a speed and a host; a border says how many accelerators of each are taken.
    """
    cluster = problem.cluster
    kinds: dict[tuple[float, int], list[int]] = {}
    for accelerator, kind in enumerate(zip(cluster.speeds, cluster.host_of, strict=True)):
        kinds.setdefault(kind, []).append(accelerator)
    borders = math.prod(len(held) + 1 for held in kinds.values())
    if len(set(cluster.speeds)) == 1 or borders > _BORDERS:
        return None
    counts = list(product(*(range(len(held) + 1) for held in kinds.values())))
    everyone, found = range(cluster.accelerators), {}
    for (begin, before), (end, after) in combinations(enumerate(counts), 2):
        parts = list(zip(kinds.values(), before, after, strict=True))
        held = tuple(sorted(one for kind, first, last in parts for one in kind[first:last]))
        ahead = all(first <= last for _, first, last in parts)
        if ahead and (problem.replicate or len(held) == 1):
            found[begin, end] = Held(held, tuple(one for one in everyone if one not in held))
    return found


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
    crossing: Array,
    cuts: Sequence[int],
    turns: Turns,
    borders: int,
) -> tuple[Array, Array]:
    """Return seconds of the stage between two states, and what it adds to a minibatch's time."""
    workload = problem.workload

    def total(values: Array) -> Array:
        sums = numpy.append(0.0, numpy.cumsum(values[list(order)]))[cuts]
        found: Array = sums[:, None] - sums
        return found

    last = numpy.arange(len(cuts)) == len(cuts) - 1
    work = workload.work_of(
        total,
        incoming_bytes=crossing[0],
        outgoing_bytes=crossing[1],
        last=numpy.broadcast_to(last[:, None], (len(cuts), len(cuts))),
    )
    groups: dict[Group, int] = {}
    # Zero is no stage.
    group = numpy.zeros((borders, borders), dtype=int)
    for (begin, end), held in turns.items():
        of_held = Group.of(problem.cluster, sorted(held.accelerators), held.beside)
        group[end, begin] = groups.setdefault(of_held, len(groups) + 1)
    behind = numpy.tri(len(cuts), k=-1, dtype=bool)
    each = numpy.full((2, len(groups) + 1, *behind.shape), math.inf)
    for of_held, number in groups.items():
        seconds = StageSeconds.of(work, of_held).total()
        through = work.seconds / of_held.speed + work.incoming_bytes / of_held.bandwidth
        each[0, number][behind], each[1, number][behind] = seconds[behind], through[behind]
    states = len(cuts) * borders
    seconds, through = each[:, group].transpose(0, 3, 1, 4, 2).reshape(2, states, states)
    return seconds, through


def _placement(stages: Sequence[tuple[Sequence[int], frozenset[int]]]) -> PlacementState:
    """Return the placement of stages, each with its operators and its accelerators."""
    stage_of = {operator: stage for stage, (held, _) in enumerate(stages) for operator in held}
    assigned = tuple(stage_of[operator] for operator in range(len(stage_of)))
    return PlacementState(assigned, tuple(holders for _, holders in stages))


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
