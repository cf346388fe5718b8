"""Two stages on every accelerator: how a search comes to them, and stays with them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search.moves import (
    PlacementState,
    evened,
    neighbour,
    random_folded,
    random_placement,
)
from drlpp.specs.cluster import Link, local_cluster
from tests.support.strategies.graphs import chain_of
from tests.support.strategies.problems import check_folded, check_placement, problems


@given(problem=problems(max_operators=9), seed=st.integers(0, 99))
def test_a_placement_is_split_there_and_back_and_once_again(
    problem: PlanningProblem, seed: int
) -> None:
    draw = random.Random(seed)
    placement = random_placement(problem, draw)
    state = PlacementState.of(placement, problem)
    folded = evened(state, problem, 2)
    fewest = min(len(placement.accelerators), len(problem.workload) // 2)
    if fewest < 2:
        assert folded is None
        return
    assert folded is not None
    check_folded(problem, folded.placement())
    assert len(folded.holders) == 2 * fewest
    back = evened(folded, problem, 1)
    assert back is not None
    check_placement(problem, back.placement())
    assert set(back.placement().accelerators) == set(folded.placement().accelerators)


@given(problem=problems(max_operators=9), seed=st.integers(0, 99))
def test_moves_keep_the_fold(problem: PlanningProblem, seed: int) -> None:
    draw = random.Random(seed)
    placement = random_folded(problem, draw)
    if placement is None:
        assert problem.cluster.accelerators < 2 or len(problem.workload) < 4
        return
    state = PlacementState.of(placement, problem)
    for _ in range(20):
        check_folded(problem, state.placement())
        found = neighbour(state, problem, draw)
        if found is None:
            return
        assert found != state
        state = found


def test_moves_change_the_number_of_accelerators() -> None:
    problem = chain_problem([1.0] * 12, [1.0] * 4)
    draw = random.Random(0)
    state = evened(PlacementState((0,) * 12, (frozenset({0, 1, 2}),)), problem, 2)
    seen = set()
    for _ in range(200):
        assert state is not None
        seen.add(len(state.holders))
        state = neighbour(state, problem, draw)
    assert seen == {4, 6, 8}


@pytest.mark.parametrize(
    ("speeds", "operators"),
    [([1.0, 1.0], [3, 3, 3, 3]), ([2.0, 1.0], [4, 2, 2, 4]), ([1.0, 5.0], [1, 5, 5, 1])],
)
def test_faster_accelerators_get_more(speeds: list[float], operators: list[int]) -> None:
    problem = chain_problem([1.0] * 12, speeds)
    whole = PlacementState((0,) * 12, (frozenset({0, 1}),))
    found = evened(whole, problem, 2)
    assert found is not None
    assert [len(found.stage(stage)) for stage in range(4)] == operators
    assert found.holders == tuple(frozenset({worker}) for worker in (0, 1, 1, 0))


def test_every_stage_has_an_operator_however_uneven_they_are() -> None:
    for heavy in range(8):
        seconds = [1.0] * 8
        seconds[heavy] = 1e6
        problem = chain_problem(seconds, [1.0] * 4)
        found = evened(PlacementState((0,) * 8, (frozenset(range(4)),)), problem, 2)
        assert found is not None
        assert found.stage_of == tuple(range(8))


def chain_problem(seconds: list[float], speeds: list[float]) -> PlanningProblem:
    _, profile = chain_of(
        seconds=seconds, parameter_bytes=[1] * len(seconds), output_bytes=[1] * len(seconds)
    )
    cluster = local_cluster(len(speeds), Link(bandwidth_bytes_per_second=1e9), speeds=speeds)
    return PlanningProblem(Workload.of(profile), cluster)


def test_placement_folded_takes_the_first_half() -> None:
    placement = Placement.from_assignment([0, 1, 2, 3], [0, 1, 3]).folded()
    assert [stage.accelerators for stage in placement.stages] == [(0,), (1,), (1,), (0,)]
    assert placement.stage_of_accelerator(3) == (0, 1, 4)
    assert [placement.stages_of(accelerator) for accelerator in range(3)] == [(0, 3), (1, 2), ()]
