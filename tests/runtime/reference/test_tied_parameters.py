"""Parameters that several stages share: all copies make the same updates, those of the reference.

`test_plain_training.py` compares a tied model with plain PyTorch and with PipeDream's formula.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.runtime import ClusterSession, Minibatches, RunOptions
from drlpp.runtime.deploying.deployment import Deployment
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup
from tests.support.in_turns import in_turns, words
from tests.support.models.forked import POLICIES, largest_difference
from tests.support.models.tied import order, placements, samples
from tests.support.training.against_reference import assert_resumes, train_twice

MINIBATCHES, FLUSHED = 15, 6
SHAPES = ("straight", "replicated", "replicated-last", "branching")
REFERENCE = ModelReference.named("tests.support.models.tied:tied")

ASYNCHRONOUS = {
    **POLICIES,
    "pipemare-t1": Method(policy="pipemare", annealing_minibatches=9),
    "pipemare-t2": Method(policy="pipemare", correction_decay=0.2),
    "pipemare": Method(policy="pipemare", annealing_minibatches=9, correction_decay=0.2),
}
FLUSHING = {
    "naive": Method(schedule="gpipe", policy="sync", clip_norm=0.3),
    "gpipe": Method(schedule="gpipe", policy="sync", microbatches=4),
    "1f1b-flush": Method(schedule="1f1b-flush", policy="sync", microbatches=4, accumulate=2),
    "zb-h1": Method(schedule="zb-h1", policy="sync", microbatches=2, clip_norm=0.3),
}
SGD = OptimizerSpec(name="sgd", options={"lr": 0.02, "momentum": 0.9, "weight_decay": 0.01})
OPTIMIZERS = {
    "sgd": SGD,
    "adamw": OptimizerSpec(name="adamw", options={"lr": 0.01, "eps": 1e-4}),
    "groups": OptimizerSpec.parse(
        "adamw",
        [
            # By one of its names; the graph has another.
            ParameterGroup.parse("guess.weight", lr=0.003, weight_decay=0),
            ParameterGroup.parse("left.*", "back.*", lr=0.02, betas=[0.8, 0.99]),
        ],
        lr=0.01,
        eps=1e-4,
    ),
}


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(REFERENCE)


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        session.use_samples(*samples())
        yield session


OPTIONS = [
    Method(policy="pipeoptim", accumulate=3, clip_norm=0.3),
    Method(policy="spectrain", microbatches=2, accumulate=2),
    Method(policy="stash", accumulate=2, recompute=True),
    Method(policy="stash-vertical", microbatches=4),
    Method(policy="2bw", microbatches=4, accumulate=2, recompute=True),
    Method(policy="vanilla", in_flight_per_link=1, clip_norm=0.3),
    Method(policy="pipeoptim", in_flight_per_link=2, recompute=True),
    Method(policy="pipemare", correction_decay=0.2, recompute=True, microbatches=2),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4, recompute=True, accumulate=3),
]


FOLDED = [
    Method(schedule="zb-v", policy="sync", microbatches=4),
    Method(schedule="zb-v", policy="sync", microbatches=2, accumulate=3, clip_norm=0.3),
]
SLOW = ("vanilla", "stash-vertical", "spectrain", "xpipe", "pipemare-t1", "pipemare-t2")
CASES = [
    *in_turns(ASYNCHRONOUS.values(), SHAPES, OPTIMIZERS, slow=[ASYNCHRONOUS[n] for n in SLOW]),
    *in_turns(FLUSHING.values(), SHAPES, OPTIMIZERS),
    *in_turns(OPTIONS, SHAPES, ["sgd"], slow=OPTIONS[1:7]),
    *in_turns(FOLDED, ["folded"], ["adamw"], slow=FOLDED[:1]),
]


@pytest.mark.parametrize(("method", "shape", "optimizer"), CASES, ids=words)
def test_weights_equal_the_reference(
    captured: CapturedModel, session: ClusterSession, method: Method, shape: str, optimizer: str
) -> None:
    assert placements(captured)[shape].pipeline(captured.graph).ties
    candidate = Candidate(placements(captured)[shape], method)
    minibatches = FLUSHED if method.flushes else MINIBATCHES
    options = RunOptions(order=order(minibatches))
    data = Minibatches(*samples())
    found = train_twice(session, candidate, OPTIMIZERS[optimizer], minibatches, data, options)
    assert found.difference < 1e-8
    assert found.losses == pytest.approx(found.reference.losses, rel=1e-8)
    assert largest_difference(found.state, captured.state) > 1e-3, "training changed nothing"
    _check_copies(session, found.deployment)


@pytest.mark.parametrize(
    ("method", "shape"),
    in_turns(
        ["stash", "pipeoptim", "2bw", "last-step", "pipemare", "gpipe"],
        ["replicated", "branching"],
        slow=("2bw", "last-step", "gpipe"),
    ),
)
def test_resuming_at_any_minibatch_changes_no_bit(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path, method: str, shape: str
) -> None:
    chosen = {**ASYNCHRONOUS, **FLUSHING}[method]
    candidate = Candidate(placements(captured)[shape], chosen)
    options = RunOptions(order=order(MINIBATCHES))
    data = Minibatches(*samples())
    assert_resumes(session, candidate, OPTIMIZERS["adamw"], data, options, (4, 9), tmp_path)


def _check_copies(session: ClusterSession, deployment: Deployment) -> None:
    """Check that all copies on all workers have the same bits, and what updates them too."""
    model, optimizer = session.collect(deployment)
    copies = 0
    for held in session.stages_of(deployment.plan.pipeline.workers).values():
        for name in held["model"].keys() & set(session.captured.aliases.values()):
            copies += 1
            assert torch.equal(held["model"][name], model[name])
            state, known = held["optimizer"][name], optimizer[name]
            torch.testing.assert_close(state, known, rtol=0, atol=0, equal_nan=True)
    assert copies > 1
