"""Programs that are made as arrays are those of the schedule's actions."""

from dataclasses import fields

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator.playing.one_f_one_b import program_of
from drlpp.simulator.playing.program import Program, Routes
from tests.support.strategies.graphs import depths, pipelines, recomputing


@st.composite
def runs(draw: st.DrawFn) -> tuple[Pipeline, Method, int, int | None]:
    """A pipeline, a method with asynchronous 1F1B, minibatches, and where a run is cut."""
    pipeline = draw(pipelines())
    stages = len(pipeline.stages)
    method = Method(
        microbatches=draw(st.integers(1, 4)),
        accumulate=draw(st.integers(1, 3)),
        in_flight_per_link=draw(depths(stages)),
        recompute=draw(recomputing(stages)),
    )
    minibatches = draw(st.integers(1, 30))
    return pipeline.numbered, method, minibatches, draw(st.none() | st.integers(1, minibatches))


@given(runs())
@settings(max_examples=200)
def test_a_program_of_arrays_is_that_of_its_actions(
    run: tuple[Pipeline, Method, int, int | None],
) -> None:
    pipeline, method, minibatches, through = run
    found = program_of(*run)
    expected = Program.of(method.schedule_for(pipeline, minibatches, through))
    assert found.steps.same(expected.steps)
    for route in fields(Routes):
        one, other = (getattr(program.routes, route.name) for program in (found, expected))
        assert numpy.array_equal(one, other)
    for name in ("stages_of", "sums", "in_flight", "half_done", "updates"):
        assert getattr(found, name) == getattr(expected, name)
