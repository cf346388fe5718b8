"""Passes in float16: losses are scaled, and updates skipped whose gradients overflow.

Against the reference executor; `test_mixed_precision.py` holds a stage against torch's GradScaler.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, PipelineTrainer, RunOptions, TrainerCallbacks
from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.against_reference import train_twice
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of

MINIBATCHES, BATCH, BLOCKS, WIDTH = 15, 8, 5, 16
LARGE_BLOCK = 3
OVERFLOWING = 2.0**15
"""With this scale gradients of the large block overflow, on every stage."""

SGD = OptimizerSpec(name="sgd", options={"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01})
PLAIN_SGD = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.0})
ADAM = OptimizerSpec(name="adam", options={"lr": 0.01, "eps": 1e-4})

PLACEMENTS = {"straight": (0, 1, 2), "replicated": (0, 0, 1, 2)}


def _samples() -> tuple[list[Tensor], Tensor]:
    """Blocks of samples, each a minibatch; those of one block are large, and so are gradients."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(BLOCKS, BATCH, WIDTH, generator=generator)
    inputs[LARGE_BLOCK] *= 10
    targets = torch.randint(0, 5, (BLOCKS * BATCH,), generator=generator)
    return [inputs.flatten(0, 1)], targets


def _order() -> Tensor:
    return torch.arange(MINIBATCHES * BATCH).view(MINIBATCHES, BATCH) % (BLOCKS * BATCH)


def steep() -> Task:
    """A chain of layers that keeps gradients as large as they are on their way back."""
    module = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(5)), nn.Linear(WIDTH, 5)
    )
    for weight in module.parameters():
        if weight.dim() == 2:
            nn.init.kaiming_normal_(weight)
    (inputs,), targets = _samples()
    return Task(module, (inputs[:BATCH],), targets[:BATCH], F.cross_entropy)


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.runtime.stage.passes.test_float16:steep"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        session.use_samples(*_samples())
        yield session


def _both(
    captured: CapturedModel,
    session: ClusterSession,
    placement: Placement,
    method: Method,
    optimizer: OptimizerSpec,
) -> ReferenceExecutor:
    """Train on the workers and with the reference, which has to come to the same."""
    options = RunOptions(order=_order())
    candidate, minibatches = Candidate(placement, method), Minibatches(*_samples())
    found = train_twice(session, candidate, optimizer, MINIBATCHES, minibatches, options)
    # Where predictions differ in their last bit, casting to float16 may round the other way.
    tolerance = 1e-3 if method.lookahead else 1e-5
    assert found.difference < tolerance
    for stage, workers in enumerate(found.deployment.plan.pipeline.stages):
        for worker in workers:
            skipped = found.results[worker].skipped_updates
            assert skipped == found.reference.skipped_updates[stage]
    return found.reference


FLUSHING = [
    (
        "straight",
        Method(
            schedule="1f1b-flush", policy="sync", microbatches=2, accumulate=2, precision="float16"
        ),
    ),
    (
        "replicated",
        Method(schedule="gpipe", policy="sync", microbatches=2, clip_norm=0.5, precision="float16"),
    ),
]
# A direction is read from the optimizer's state, gradients or the last step.
ASYNCHRONOUS = [
    ("replicated", SGD, {"policy": "stash", "accumulate": 2, "clip_norm": 0.5}),
    ("replicated", SGD, {"policy": "pipeoptim", "recompute": True}),
    ("straight", SGD, {"policy": "pipemare", "correction_decay": 0.2, "recompute": True}),
    ("straight", ADAM, {"policy": "spectrain", "accumulate": 2, "recompute": True}),
    ("straight", PLAIN_SGD, {"policy": "xpipe", "recompute": True}),
]


@pytest.mark.parametrize(("shape", "method"), FLUSHING, ids=str)
def test_all_stages_of_a_schedule_that_flushes_skip_the_same_updates(
    captured: CapturedModel, session: ClusterSession, method: Method, shape: str
) -> None:
    placement = in_a_row(captured.graph, *PLACEMENTS[shape])
    usual = _both(captured, session, placement, method, SGD)
    assert set(usual.skipped_updates) == {0}
    # On its own only the first stage would skip updates.
    overflowing = method.model_copy(update={"loss_scale": OVERFLOWING / 2})
    found = _both(captured, session, placement, overflowing, SGD)
    assert len(set(found.skipped_updates)) == 1
    assert 0 < found.skipped_updates[0] < MINIBATCHES // method.accumulate


@pytest.mark.parametrize(("shape", "optimizer", "options"), ASYNCHRONOUS, ids=str)
def test_asynchronous_weights_equal_the_reference_and_predictions_follow_the_last_step_made(
    captured: CapturedModel,
    session: ClusterSession,
    shape: str,
    optimizer: OptimizerSpec,
    options: dict[str, Any],
) -> None:
    placement = in_a_row(captured.graph, *PLACEMENTS[shape])
    method = Method.model_validate({**options, "precision": "float16", "loss_scale": OVERFLOWING})
    found = _both(captured, session, placement, method, optimizer)
    assert all(0 < skipped < MINIBATCHES for skipped in found.skipped_updates)


def _data(example_inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], ...]:
    (inputs,), targets = _samples()
    return (inputs, targets), (inputs[:BATCH], targets[:BATCH])


def test_a_user_is_told_of_skipped_updates(captured: CapturedModel, tmp_path: Path) -> None:
    notes: list[str] = []
    method = Method(policy="stash", precision="float16", loss_scale=2.0**40)
    document = file_of(captured, in_a_row(captured.graph, 0, 1), method=method, optimizer=SGD)
    observer = TrainerCallbacks(on_note=notes.append)
    PipelineTrainer(document, out=tmp_path, observer=observer).fit(f"{__name__}:_data", epochs=1)
    assert notes == [
        f"in epoch 1 gradients overflowed in float16, and a stage skipped {BLOCKS} of its updates; "
        f"a loss_scale below {2.0**40:g} may help"
    ]
