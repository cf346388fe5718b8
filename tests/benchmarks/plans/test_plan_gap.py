"""The study of how far plans are from what a long search finds, on a few small instances."""

from __future__ import annotations

import pytest

from benchmarks.plan_gap.__main__ import compare, gap, instances, summary, table_of
from benchmarks.plan_gap.search import climb
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.planners import Limits, PlanningProblem
from drlpp.planners.search.moves import PlacementState
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster
from tests.support.strategies.graphs import chain_of


def test_a_climb_finds_the_optimum_of_a_small_chain() -> None:
    """From everything on one accelerator: 6 s and 6 s on two, which no message holds up."""
    _, profile = chain_of(seconds=[6, 3, 3], parameter_bytes=[9] * 3, output_bytes=[1] * 3)
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1.0))
    problem = PlanningProblem(Workload.of(profile, Method()), cluster)
    alone = PlacementState.of(Placement.from_assignment([0, 0, 0], [0]), problem)
    assert climb(problem, Method(), [(alone, 0)], 1) <= 12
    assert climb(problem, Method(), [(alone, 0)], 100) == pytest.approx(6)
    again = [climb(problem, Method(), [(alone, 0)], 5) for _ in range(2)]
    assert again[0] == again[1]


def test_plans_are_compared() -> None:
    found = list(instances([], ["layered"], [2], seed=1))
    assert [bandwidth for _, bandwidth, _ in found] == [1.25e8, 1.25e9]
    row = compare(*found[0], evaluations=3, limits=Limits(judged=50))
    assert row.best_seconds <= row.searched_seconds <= row.plan_seconds <= row.exact_seconds
    assert row.plan_seconds <= row.data_parallel_seconds
    assert gap(row.best_seconds, row) == 0
    (line,) = table_of([row]).to_dict("records")
    assert line["links"] == "125 MB/s"
    assert line["found by"] == row.planned_by
    assert line["search"] == f"{gap(row.searched_seconds, row):.1f}%"
    assert "`drlpp plan`" in summary([row])
