"""Downsets of a workload: the sets of operators that can stand in the first stages.

A set is a downset if it holds, with every operator, all that this one reads. Stages in their order
are the steps of a chain ∅ ⊂ J₁ ⊂ J₂ ⊂ … of downsets, and every such chain is a partition, so a
planner that knows all downsets knows all partitions (Tarnawski et al. 2020, section 5.1).

There can be exponentially many. They are counted without being enumerated, by the rule

    #(P) = #(P without what needs v) + #(P without what v needs)

for any operator v, where v needs itself and is needed by itself: the first are the downsets
without v, the second those with it. What is not connected multiplies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy
from numpy.typing import NDArray

from drlpp.costs.workload import Workload
from drlpp.planners.problem import closures, mask_of, members_of

Downsets = NDArray[numpy.bool_]
"""``(downsets, operators)``: which operators each holds; the smallest first."""

_MOST_STEPS = 20_000


def count_downsets(workload: Workload) -> int | None:
    """Return the number of downsets, the empty and the full one included.

    Returns:
        None if counting takes too long, which is only so where there are far too many.
    """
    needed, needing = closures(workload)
    known: dict[int, int] = {0: 1}
    steps = 0

    def count(poset: int) -> int:
        nonlocal steps
        if poset in known:
            return known[poset]
        steps += 1
        if steps > _MOST_STEPS:
            raise _TooManySteps
        part = _component(poset, needed, needing)
        if part != poset:
            found = count(part) * count(poset & ~part)
        else:
            pivot = max(
                members_of(poset),
                key=lambda v: (needed[v] & poset).bit_count() * (needing[v] & poset).bit_count(),
            )
            found = count(poset & ~needing[pivot]) + count(poset & ~needed[pivot])
        known[poset] = found
        return found

    try:
        return count((1 << len(workload)) - 1)
    except (_TooManySteps, RecursionError):
        return None


class _TooManySteps(Exception):
    pass


def all_downsets(workload: Workload) -> Downsets:
    """Return every downset; count them first."""
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
    return _as_matrix(found, len(workload))


def _component(poset: int, needed: Sequence[int], needing: Sequence[int]) -> int:
    """Return the operators connected with the first one of ``poset``."""
    part = frontier = poset & -poset
    while frontier:
        reached = 0
        for operator in members_of(frontier):
            reached |= needed[operator] | needing[operator]
        frontier = reached & poset & ~part
        part |= frontier
    return part


def _as_matrix(masks: Iterable[int], operators: int) -> Downsets:
    width = -(-operators // 8)
    ordered = sorted(masks, key=lambda mask: (mask.bit_count(), mask))
    packed = b"".join(mask.to_bytes(width, "little") for mask in ordered)
    rows = numpy.frombuffer(packed, dtype=numpy.uint8).reshape(len(ordered), width)
    return numpy.unpackbits(rows, axis=1, count=operators, bitorder="little").astype(bool)
