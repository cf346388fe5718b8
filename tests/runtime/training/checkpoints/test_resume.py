"""A checkpoint with minibatches in flight goes on bit for bit, in workers that never saw them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.runtime.ipc.tensor_file import read_checkpoint
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup
from tests.support.in_turns import in_turns
from tests.support.models.forked import POLICIES, SHAPES, order, placements, samples
from tests.support.training.against_reference import assert_resumes

MINIBATCHES = 12

METHODS = {
    **POLICIES,
    "pipeoptim-accumulating": Method(policy="pipeoptim", accumulate=3),
    "pipemare": Method(policy="pipemare", annealing_minibatches=10, correction_decay=0.2),
    "deeper": Method(policy="stash", in_flight_per_link=1),
    "microbatches": Method(policy="stash", microbatches=2),
    "predicted-microbatches": Method(policy="pipeoptim", microbatches=4),
    "recomputing": Method(policy="pipeoptim", recompute=True),
    "compiled": Method(policy="pipeoptim", compiled=True),
    "gpipe": Method(schedule="gpipe", policy="sync", microbatches=2, accumulate=2),
    "zb-h1": Method(schedule="zb-h1", policy="sync", microbatches=4),
}

SGD = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01})
OPTIMIZERS = {
    "sgd": SGD,
    "plain-sgd": OptimizerSpec(name="sgd", options={"lr": 0.1, "momentum": 0.0}),
    "rprop": OptimizerSpec(name="rprop", options={"lr": 0.001}),
}
OPTIMIZERS["groups"] = OptimizerSpec.parse(
    "adamw",
    [
        ParameterGroup.parse("*bias*", "norm.*", weight_decay=0),
        ParameterGroup.parse("lstm.*", optimizer="sgd", lr=0.02, momentum=0),
        ParameterGroup.parse("conv.*", "head.*", optimizer="rprop", lr=0.001),
    ],
    lr=0.01,
)
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["muon"] = OptimizerSpec(name="muon", options={"lr": 0.01, "adamw_lr": 0.003})


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        session.use_samples(*samples())
        yield session


OPTIONS = RunOptions(
    order=order(MINIBATCHES),
    rates=[0.05 / (1 + 0.1 * minibatch) for minibatch in range(MINIBATCHES)],
)


@pytest.mark.parametrize(
    ("method", "shape"),
    in_turns(
        METHODS,
        SHAPES[1:],
        slow={*METHODS} - {"stash", "pipemare", "predicted-microbatches"},
    ),
)
def test_resuming_at_any_minibatch_changes_no_bit(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path, method: str, shape: str
) -> None:
    candidate = Candidate(placements(captured)[shape], METHODS[method])
    assert_resumes(session, candidate, SGD, OPTIONS, (1, 5), tmp_path)


def test_two_stages_on_an_accelerator_resume(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path
) -> None:
    method = Method(schedule="zb-v", policy="sync", microbatches=2, accumulate=2)
    candidate = Candidate(placements(captured)["folded"], method)
    assert_resumes(session, candidate, SGD, OPTIONS, (4, 5), tmp_path)


PREDICTING = ["pipeoptim", "pipeoptim-accumulating", "spectrain", "xpipe"]


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        *in_turns(PREDICTING, [name for name in OPTIMIZERS if name != "sgd"], slow=["groups"]),
        ("stash", "groups"),
        pytest.param("2bw", "groups", marks=pytest.mark.slow),
    ],
)
def test_resuming_keeps_what_predictions_are_made_from(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path, method: str, optimizer: str
) -> None:
    candidate = Candidate(placements(captured)["replicated"], METHODS[method])
    assert_resumes(session, candidate, OPTIMIZERS[optimizer], OPTIONS, (5, 8), tmp_path)


def test_a_cut_through_the_gradients_of_an_update_keeps_their_sum(tmp_path: Path) -> None:
    """On 1-4-1 with updates of three minibatches, stage 0 stops behind a backward of the next."""
    captured = capture(ModelReference.named("tests.support.models.small:perceptron"))
    operators = len(captured.graph)
    placement = Placement.from_assignment(
        [3 * i // operators for i in range(operators)], (0, 1, 1, 1, 1, 2)
    )
    method = Method(policy="pipeoptim", accumulate=3)
    with ClusterSession(captured, workers=6) as session:
        generator = torch.Generator().manual_seed(3)
        session.use_samples(
            [torch.randn(40, 16, generator=generator)],
            torch.randint(0, 5, (40,), generator=generator),
        )
        candidate = Candidate(placement, method)
        paths = assert_resumes(session, candidate, SGD, OPTIONS, (4,), tmp_path)
    saved = read_checkpoint(paths[4])["in_flight"][0]["stage"]
    assert any(value is not None for value in saved["gradients"])
