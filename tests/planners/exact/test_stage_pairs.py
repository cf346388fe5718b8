from __future__ import annotations

import numpy
from hypothesis import given, settings

from drlpp.costs.workload import Workload
from drlpp.planners.exact.contraction import contract_free_operators
from drlpp.planners.exact.downsets import all_downsets
from drlpp.planners.exact.stage_pairs import StagePairs
from tests.support.strategies.problems import workloads


@given(workloads(max_operators=6))
@settings(max_examples=30)
def test_the_work_of_every_stage_is_that_of_its_operators(workload: Workload) -> None:
    downsets = all_downsets(workload)
    alone_each = [[operator] for operator in range(len(workload))]
    pairs = StagePairs.of(workload, downsets)
    pairs = pairs.with_working_bytes(workload, alone_each, numpy.arange(len(pairs)))
    expected = sum(
        (downsets[i] <= downsets[j]).all() and i != j
        for i in range(len(downsets))
        for j in range(len(downsets))
    )
    assert len(pairs) == expected
    for number in range(len(pairs)):
        begin, end = pairs.begin[number], pairs.end[number]
        assert pairs.first[begin] <= number < pairs.first[begin + 1]
        operators = numpy.flatnonzero(downsets[end] & ~downsets[begin]).tolist()
        alone = workload.stage(operators, last=bool(downsets[end].all()))
        for field, value in vars(alone).items():
            # The number of microbatches is the same for all stages.
            found = numpy.broadcast_to(getattr(pairs.work, field), len(pairs))
            assert numpy.isclose(found[number], value), field


@given(workloads(max_operators=8, free=True))
@settings(max_examples=30)
def test_contraction_keeps_all_that_costs_something(workload: Workload) -> None:
    """That it loses nothing, the exact planner's tests show: they hold it against the original."""
    found = contract_free_operators(workload)
    assert sorted(op for group in found.members for op in group) == list(range(len(workload)))
    smaller = found.workload
    assert all(source < target for source, target in smaller.edges)
    for field in ("forward_seconds", "backward_seconds", "update_seconds", "parameter_bytes"):
        for number, group in enumerate(found.members):
            assert getattr(smaller, field)[number] == getattr(workload, field)[list(group)].sum()
    costs = workload.seconds + workload.update_seconds + workload.parameter_bytes
    for group in found.members:
        assert len(group) == 1 or min(costs[list(group)]) == 0
