"""Joining operators that no assignment within a given time can part."""

from __future__ import annotations

import numpy
import pytest

from drlpp.costs.stage_cost import CostModel
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.planners.milp.items import Items
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.specs.cluster import Link, local_cluster


@pytest.mark.parametrize(
    ("costs", "within_seconds", "operators"),
    [
        # Apart, both take 4 + 2 seconds.
        ("serial", 6.0, ((0,), (1,))),
        ("serial", 5.99, ((0, 1),)),
        # Apart, the tensor takes 2 seconds beside the 4 of computing.
        ("overlapped", 4.0, ((0,), (1,))),
        ("overlapped", 1.99, ((0, 1),)),
    ],
)
def test_a_tensor_that_cannot_be_cut_in_time_joins_its_members(
    costs: CostModel, within_seconds: float, operators: tuple[tuple[int, ...], ...]
) -> None:
    nothing = numpy.zeros(2)
    workload = Workload(
        model="pair",
        names=("a", "b"),
        forward_seconds=numpy.array([4.0, 4.0]),
        backward_seconds=nothing,
        update_seconds=nothing,
        parameter_bytes=nothing,
        kept_bytes=nothing,
        edges=((0, 1),),
        transfers=(Transfer((0, 1), 2.0, 0.0),),
    )
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1.0))
    problem = PlanningProblem(workload, cluster, costs=costs, replicate=False)
    items = Items.of(problem, within_seconds)
    assert items.operators == operators
    assert len(items.tensors) == len(operators) - 1
