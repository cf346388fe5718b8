"""Depths of links and recomputation of stages: one value for all, or one for each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.schedule.actions import Recompute
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import stretched
from drlpp.schedule.pipeline import Pipeline, StageEdge
from drlpp.schedule.schedule import build_schedule
from tests.support.schedule_texts import folded
from tests.support.strategies.graphs import pipelines

THREE = Pipeline.straight(1, 1, 1)


def plan_of(method: Method, pipeline: Pipeline) -> ExecutionPlan:
    stages = range(len(pipeline.stages))
    return ExecutionPlan(Candidate(Placement.from_assignment(stages, stages), method), pipeline)


@given(pipelines(), st.integers(0, 3), st.booleans())
def test_equal_values_are_one_value(pipeline: Pipeline, per_link: int, recompute: bool) -> None:
    stages = len(pipeline.stages)
    one = Method(in_flight_per_link=per_link, recompute=recompute)
    each = Method(
        in_flight_per_link=(per_link,) * max(stages - 1, 1), recompute=(recompute,) * stages
    )
    assert each == one
    assert hash(each) == hash(one)
    assert each.model_dump_json() == one.model_dump_json()
    # Below the method lists are as they are given.
    assert pipeline.in_flight((per_link,) * (stages - 1)) == pipeline.in_flight(per_link)
    listed = build_schedule(
        pipeline,
        6,
        in_flight_per_link=(per_link,) * (stages - 1),
        recompute=(recompute,) * stages,
    )
    assert listed == build_schedule(pipeline, 6, in_flight_per_link=per_link, recompute=recompute)


def test_a_link_counts_for_all_stages_before_it() -> None:
    """Of a chain; of replicas, each; of branches, the one with the most."""
    assert THREE.in_flight((2, 0)) == (5, 2, 1)
    assert THREE.in_flight((0, 2)) == (5, 4, 1)
    assert Pipeline.straight(1, 1, 2).in_flight((0, 1)) == (6, 5, 1)
    assert Pipeline.straight(2, 1).in_flight(2) == (3, 1)
    edges = tuple(StageEdge(*edge) for edge in ((0, 1), (0, 2), (1, 3), (2, 3)))
    forked = Pipeline(((0,), (1,), (2,), (3,)), edges)
    assert forked.in_flight((0, 1, 0)) == (4, 2, 2, 1)
    assert forked.in_flight((3, 1, 0)) == (6, 2, 2, 1)
    wide = Pipeline(((0,), (1,), (2, 3, 4), (5,)), edges)
    assert wide.in_flight() == (5, 2, 2, 1)


@pytest.mark.parametrize("kind", ["1f1b", "1f1b-flush", "gpipe", "zb-h1", "zb-v"])
def test_the_stages_recompute_that_are_to(kind: str) -> None:
    pipeline = folded(2) if kind == "zb-v" else Pipeline.straight(1, 1, 1, 1)
    parts = {} if kind == "1f1b" else {"microbatches": 4}
    schedule = build_schedule(pipeline, 6, kind, **parts, recompute=(False, True, True, False))
    recomputing = {
        pipeline.stages_of(worker)[action.chunk]
        for worker, actions in schedule.actions.items()
        for action in actions
        if isinstance(action, Recompute)
    }
    assert recomputing == {1, 2}


@pytest.mark.parametrize(
    ("options", "stages", "message"),
    [
        ({"in_flight_per_link": (1, 0)}, 2, "has 2 values, .* has 2 stages: give one value$"),
        (
            {"in_flight_per_link": (1, 0)},
            4,
            "has 4 stages: .*, or 3, one for each link",
        ),
        ({"recompute": (True, False)}, 3, "recompute has 2 values, .* or 3, one for each stage"),
    ],
)
def test_a_list_of_another_length_is_refused(
    options: dict[str, object], stages: int, message: str
) -> None:
    method = Method.model_validate(options)
    with pytest.raises(InvalidInput, match=message):
        plan_of(method, Pipeline.straight(*[1] * stages))
    with pytest.raises(InvalidInput, match=message):
        method.schedule_for(Pipeline.straight(*[1] * stages), 3)


def test_a_list_for_another_number_of_stages_is_stretched() -> None:
    method = Method(in_flight_per_link=(2, 0, 1), recompute=(True, False, False, False))
    assert method.for_stages(4) == method
    assert method.for_stages(3) == Method(in_flight_per_link=(2, 0), recompute=(True, False, False))
    assert method.for_stages(1) == Method(in_flight_per_link=2, recompute=True)
    assert method.for_any_stages == Method(in_flight_per_link=2, recompute=True)
    assert stretched((0, 3), 4) == (0, 0, 3, 3)
    assert stretched(3, 4) == 3
