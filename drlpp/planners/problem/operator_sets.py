"""Sets of operators as the bits of an integer: small, hashable, quick to join and to compare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drlpp.costs.workload import Workload


def mask_of(operators: Iterable[int]) -> int:
    """Return the set of these operators."""
    return sum(1 << operator for operator in operators)


def members_of(mask: int) -> Iterator[int]:
    """Yield the operators of a set, in order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def closures(workload: Workload) -> tuple[list[int], list[int]]:
    """Return for every operator what it needs, and what needs it, directly or not.

    The operator itself is in both.
    """
    size = len(workload)
    needed = [1 << operator for operator in range(size)]
    needing = list(needed)
    for operator in range(size):
        for source in workload.predecessors[operator]:
            needed[operator] |= needed[source]
    for operator in reversed(range(size)):
        for reader in workload.successors[operator]:
            needing[operator] |= needing[reader]
    return needed, needing
