"""The map of what wins over links and memory, against its own cluster's prediction and extremes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.made_up import generate
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.planners import Limits, PlanningProblem, Space, Vary, best_plan
from drlpp.planners.map import FLUSHED, PIPELINE, Cell, map_of_ways, ways_of_training
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster

BATCH = 32
METHOD = Method()
PROFILE = generate("layered", 12, 0).model_copy(update={"batch_size": BATCH})


def problem(bandwidth: float, memory: float | None = None) -> PlanningProblem:
    workload = Workload.of(PROFILE, METHOD)
    cluster = local_cluster(4, Link(bandwidth_bytes_per_second=bandwidth), memory_bytes=memory)
    return PlanningProblem(workload, cluster, memory=MemoryModel(method=METHOD))


def cells(given: PlanningProblem, profile: Profile = PROFILE) -> tuple[Cell, ...]:
    found = best_plan(given, Space(METHOD, frozenset({Vary.DEPTH})), limits=Limits(judged=200))
    return map_of_ways(found, given, profile)


@pytest.mark.parametrize("bandwidth", [1e8, 1e12])
def test_ones_own_cell_is_ones_own_cluster_and_links_decide(bandwidth: float) -> None:
    given = problem(bandwidth)
    found = cells(given)
    (own,) = [cell for cell in found if cell.own]
    ways = ways_of_training(given, BATCH)
    assert (own.weights_ratio, own.memory_ratio) == (ways.weights_ratio, 0.0)
    assert own.seconds <= 1.001 * min(one.seconds_to_loss for one in ways.best())
    unlimited = sorted((c for c in found if not c.memory_ratio), key=lambda c: c.weights_ratio)
    # With fast links nothing is gained by a pipeline, with slow ones nothing by sums; no link helps
    # by being slower.
    assert unlimited[0].way not in (PIPELINE, FLUSHED)
    assert "ddp" not in unlimited[-1].way
    assert [c.seconds for c in unlimited] == pytest.approx(
        sorted(c.seconds for c in unlimited), rel=0.01
    )


def test_links_and_memory_are_scaled_to_the_ratios_of_a_cell() -> None:
    given = problem(1e9)
    limit = ways_of_training(given, BATCH).plain.memory_bytes
    found = cells(problem(1e9, 0.7 * limit))
    (own,) = [cell for cell in found if cell.own]
    assert own.memory_ratio == pytest.approx(1 / 0.7)
    for factor, memory in ((0.1, 1.0), (3.0, 0.25)):
        there = replace(
            problem(1e9, limit), cluster=problem(1e9, limit).cluster.scaled(factor, memory)
        )
        ways = ways_of_training(there, BATCH)
        assert ways.weights_ratio * factor == pytest.approx(
            ways_of_training(given, BATCH).weights_ratio
        )
        assert ways.memory_ratio == pytest.approx(1 / memory)
    # Less memory is never faster.
    for column in {cell.weights_ratio for cell in found}:
        seconds = [c.seconds for c in found if c.weights_ratio == column]
        assert seconds == pytest.approx(sorted(seconds), rel=0.01)


@pytest.mark.parametrize(("kind", "divided"), [("conv2d", True), ("batch_norm", False)])
def test_where_batches_are_normalised_no_minibatch_is_divided(kind: str, divided: bool) -> None:
    operators = tuple(o.model_copy(update={"type": kind}) for o in PROFILE.graph.operators)
    graph = PROFILE.graph.model_copy(update={"operators": operators})
    found = cells(problem(1e9), PROFILE.model_copy(update={"graph": graph}))
    numbers = {c.candidate.method.microbatches for c in found if c.candidate}
    assert max(numbers) > 1 if divided else numbers == {1}
