"""Compiled stages train as those that run as they are, which train as the reference."""

from collections.abc import Iterator

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.runtime import ClusterSession, Minibatches, RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import in_turns, words
from tests.support.models.forked import POLICIES, SHAPES, order, placements, samples
from tests.support.training.against_reference import train_twice

MINIBATCHES = 9
SPECS = {
    "sgd": OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "adamw": OptimizerSpec(name="adamw", options={"lr": 0.01, "eps": 1e-4}),
}
METHODS = [
    *POLICIES.values(),
    Method(policy="pipemare", annealing_minibatches=9, correction_decay=0.2),
    Method(policy="pipeoptim", recompute=True),
    Method(policy="stash", microbatches=2, accumulate=2),
    Method(policy="pipeoptim", microbatches=2, clip_norm=0.5),
    Method(schedule="gpipe", policy="sync", microbatches=4),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4, recompute=True),
]
CASES = [*in_turns(METHODS, SHAPES, SPECS, one_of=1)]


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4, note=lambda note: None) as session:
        session.use_samples(*samples())
        yield session


@pytest.mark.parametrize(("method", "shape", "optimizer"), CASES, ids=words)
def test_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: Method, shape: str, optimizer: str
) -> None:
    compiled = method.model_copy(update={"compiled": True})
    found = train_twice(
        session,
        Candidate(placements(captured)[shape], compiled),
        SPECS[optimizer],
        MINIBATCHES,
        Minibatches(*samples()),
        RunOptions(order=order(MINIBATCHES)),
    )
    print(method, shape, found.deployment.uncompiled, found.difference)
    assert found.difference < 1e-5
