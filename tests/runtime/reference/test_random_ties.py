"""Asynchronous methods against the reference, on any placement of a model with tied parameters."""

from collections.abc import Iterator

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.tied import order, samples
from tests.support.strategies.graphs import placements
from tests.support.training.against_reference import train_twice

WORKERS, MINIBATCHES = 4, 11
ADAMW = OptimizerSpec(name="adamw", options={"lr": 0.005, "eps": 1e-4})


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    captured = capture(ModelReference.named("tests.support.models.tied:tied"))
    with ClusterSession(captured, workers=WORKERS) as session:
        session.use_samples(*samples())
        yield session


@st.composite
def candidates(draw: st.DrawFn, captured: CapturedModel) -> Candidate:
    placement: Placement = draw(placements(captured.graph, WORKERS))
    assume(placement.ties(captured.graph))
    policies = ["vanilla", "stash", "stash-vertical", "spectrain", "pipeoptim", "pipemare"]
    policy = draw(st.sampled_from(policies))
    method = Method(
        policy=policy,
        microbatches=draw(st.sampled_from([1, 2, 4])),
        accumulate=draw(st.integers(1, 3)),
        in_flight_per_link=draw(st.integers(0, 1)),
        recompute=draw(st.booleans()),
        clip_norm=draw(st.sampled_from([0.0, 0.3])),
        correction_decay=0.2 if policy == "pipemare" else 0.0,
    )
    return Candidate(placement, method)


@given(data=st.data())
@settings(deadline=None, max_examples=8)
def test_workers_equal_the_reference(session: ClusterSession, data: st.DataObject) -> None:
    candidate = data.draw(candidates(session.captured))
    pipeline = candidate.placement.pipeline(session.graph)
    event(f"{len(pipeline.stages)} stages, {len(pipeline.ties)} ties")
    options = RunOptions(order=order(MINIBATCHES))
    minibatches = Minibatches(*samples())
    assert (
        train_twice(session, candidate, ADAMW, MINIBATCHES, minibatches, options).difference < 1e-8
    )
