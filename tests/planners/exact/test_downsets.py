from __future__ import annotations

from itertools import product

import numpy
import pytest
from hypothesis import given, settings

from drlpp.costs.workload import Workload
from drlpp.planners.exact.downsets import all_downsets, count_downsets, some_downsets
from tests.support.strategies.problems import workloads


def every_downset(workload: Workload) -> set[tuple[bool, ...]]:
    return {
        held
        for held in product([False, True], repeat=len(workload))
        if all(held[source] or not held[target] for source, target in workload.edges)
    }


@given(workloads(max_operators=8))
def test_all_are_found_and_counted(workload: Workload) -> None:
    expected = every_downset(workload)
    found = all_downsets(workload)
    assert {tuple(row) for row in found.tolist()} == expected
    assert len(found) == len(expected) == count_downsets(workload)
    assert not found[0].any()
    assert found[-1].all()
    sizes = found.sum(axis=1)
    assert (numpy.diff(sizes) >= 0).all()


@pytest.mark.parametrize("most", [1, 5, 40])
@given(workload=workloads(max_operators=8))
@settings(max_examples=40)
def test_some_are_downsets_and_contain_a_whole_order(workload: Workload, most: int) -> None:
    found = some_downsets(workload, most)
    rows = {tuple(row) for row in found.tolist()}
    assert rows <= every_downset(workload)
    assert len(rows) == len(found)
    assert set(found.sum(axis=1).tolist()) == set(range(len(workload) + 1))


def grid(rows: int, columns: int) -> Workload:
    """Operators that each need those above and to the left."""
    zeros = numpy.zeros(rows * columns)
    number = {(r, c): r * columns + c for r in range(rows) for c in range(columns)}
    edges = [(number[r, c], number[r + 1, c]) for r in range(rows - 1) for c in range(columns)]
    edges += [(number[r, c], number[r, c + 1]) for r in range(rows) for c in range(columns - 1)]
    return Workload(
        model="grid",
        names=tuple(f"op{i}" for i in range(rows * columns)),
        forward_seconds=zeros,
        backward_seconds=zeros,
        update_seconds=zeros,
        parameter_bytes=zeros,
        kept_bytes=zeros,
        edges=tuple(edges),
        transfers=(),
    )


def test_counting_does_not_enumerate() -> None:
    """The downsets of a grid are the lattice paths along its border: binomial(r + c, r)."""
    assert count_downsets(grid(12, 12)) == 2704156


def test_what_cannot_be_counted_is_none() -> None:
    assert count_downsets(grid(60, 60)) is None
