"""Weights equal the reference's where links differ in depth, and stages in recomputation."""

from collections.abc import Iterator

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.runtime import ClusterSession, Minibatches, RunOptions
from drlpp.schedule.actions import Recompute
from drlpp.schedule.analysis.weight_versions import stage_delay
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import in_turns
from tests.support.models.forked import SHAPES, largest_difference, order, placements, samples
from tests.support.training.against_reference import train_twice

MINIBATCHES = 16
SGD = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01})

ASYNCHRONOUS = {
    "stash": Method(
        policy="stash", in_flight_per_link=(2, 0, 1), recompute=(False, True, False, True)
    ),
    "pipeoptim": Method(in_flight_per_link=(0, 2, 1), recompute=(True, False, True, False)),
    "2bw": Method(
        policy="2bw",
        accumulate=8,
        in_flight_per_link=(0, 0, 2),
        recompute=(True, False, False, True),
    ),
    "spectrain": Method(policy="spectrain", in_flight_per_link=(0, 1, 0), microbatches=2),
    "pipemare": Method(
        policy="pipemare",
        annealing_minibatches=9,
        correction_decay=0.2,
        in_flight_per_link=(1, 0, 2),
        recompute=(False, True, True, False),
    ),
}
"""For fewer stages lists are stretched."""


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        session.use_samples(*samples())
        yield session


def check(session: ClusterSession, candidate: Candidate) -> None:
    options = RunOptions(order=order(MINIBATCHES))
    found = train_twice(session, candidate, SGD, MINIBATCHES, Minibatches(*samples()), options)
    assert largest_difference(found.state, found.reference.state) < 1e-9
    assert found.losses == pytest.approx(found.reference.losses, rel=1e-9)


@pytest.mark.parametrize(("name", "shape"), in_turns(ASYNCHRONOUS, SHAPES, one_of=4))
def test_asynchronous_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, name: str, shape: str
) -> None:
    placement = placements(captured)[shape]
    method = ASYNCHRONOUS[name].for_stages(len(placement.stages))
    check(session, Candidate(placement, method))
    plan = session.plan(placement, method)
    schedule = plan.schedule(MINIBATCHES)
    # What is told of a steady state is what was trained with.
    assert [stage_delay(schedule, k) for k in range(len(plan.delays))] == list(plan.delays)


@pytest.mark.parametrize(
    ("schedule", "shape"), [("1f1b-flush", "straight"), ("zb-h1", "branching"), ("zb-v", "folded")]
)
def test_weights_equal_the_reference_where_some_stages_recompute(
    captured: CapturedModel, session: ClusterSession, schedule: str, shape: str
) -> None:
    recompute = (True, False, False, True)
    method = Method(schedule=schedule, policy="sync", microbatches=4, recompute=recompute)
    placement = placements(captured)[shape]
    check(session, Candidate(placement, method))
    written = session.plan(placement, method).schedule(MINIBATCHES)
    recomputing = {
        written.pipeline.stages_of(worker)[action.chunk]
        for worker, actions in written.actions.items()
        for action in actions
        if isinstance(action, Recompute)
    }
    # The last stage has nothing to gain where its backward follows at once.
    assert {0} <= recomputing <= {0, 3}
