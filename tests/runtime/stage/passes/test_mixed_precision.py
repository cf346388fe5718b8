"""Passes in bfloat16 against a plain loop under torch.autocast.

Weights, gradients and optimizer stay in float32 on both sides. On a single stage the same
operators are cast in the same places, so the weights are the same but for the last bit: autograd
may add the gradients of a tensor with several readers in another order. Several stages are compared
with the reference executor in `test_float16.py`.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.gathering import BATCH, REFERENCE, SAMPLES, objective, samples
from tests.support.training.pipelines import (
    assert_state,
    draw,
    in_a_row,
    random_order,
    train,
    trained_parameters,
)

MINIBATCHES, RATE = 8, 0.05
SPEC = OptimizerSpec(name="sgd", options={"lr": RATE, "momentum": 0.9})
SINGLE = REFERENCE.model_copy(update={"options": {"dtype": "float32"}})


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    with ClusterSession(capture(SINGLE), workers=3) as session:
        session.use_samples(*samples("float32"))
        yield session


def _on_workers(
    session: ClusterSession, accelerators: tuple[int, ...], method: Method
) -> dict[str, Tensor]:
    deployment = session.deploy(in_a_row(session.graph, *accelerators), method, SPEC)
    order = random_order(SAMPLES, MINIBATCHES, BATCH)
    session.run(deployment, MINIBATCHES, RunOptions(order=order))
    state, _ = session.collect(deployment)
    return state


def _plain(autocast: torch.dtype | None) -> nn.Module:
    module = SINGLE.build().module
    optimizer = torch.optim.SGD(trained_parameters(module), lr=RATE, momentum=0.9)
    minibatches = draw(*samples("float32"), random_order(SAMPLES, MINIBATCHES, BATCH))
    train(module, objective, optimizer, minibatches, autocast=autocast)
    return module


@pytest.mark.parametrize("recompute", [False, True])
def test_a_single_stage_equals_a_loop_under_autocast(
    session: ClusterSession, *, recompute: bool
) -> None:
    method = Method(schedule="gpipe", policy="sync", precision="bfloat16", recompute=recompute)
    state = _on_workers(session, (0,), method)
    assert_state(state, _plain(torch.bfloat16), rtol=1e-6, atol=1e-6)
    assert {value.dtype for value in state.values()} == {torch.float32}


def _train_with_scaler(scale: float, together: int, clip_norm: float) -> tuple[nn.Module, int]:
    """The usual loop of torch's documentation; how many steps were skipped.

    The scale is set anew after every step, so that it stays as it is.
    """
    module = SINGLE.build().module
    optimizer = torch.optim.SGD(trained_parameters(module), lr=RATE, momentum=0.9)
    order = random_order(SAMPLES, MINIBATCHES, BATCH)
    minibatches = draw(*samples("float32"), order)
    # Workers divide by the number of minibatches in the end, after their backwards.
    scale = scale * together
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    skipped = 0
    for first in range(0, len(minibatches), together):
        optimizer.zero_grad()
        for minibatch in minibatches[first : first + together]:
            inputs, targets = minibatch
            with torch.autocast("cpu", torch.float16):
                loss = objective(module(*inputs), targets) / together
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if clip_norm:
            nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        scaler.step(optimizer)
        skipped += any(
            not weight.grad.isfinite().all()
            for weight in module.parameters()
            if weight.grad is not None
        )
        scaler.update(scale)
    return module, skipped


@pytest.mark.parametrize(("scale", "together", "clip_norm"), [(1024.0, 1, 0.5), (2.0**16, 2, 0.0)])
def test_a_single_stage_equals_torchs_own_scaler(
    session: ClusterSession, scale: float, together: int, clip_norm: float
) -> None:
    method = Method(
        schedule="gpipe",
        policy="sync",
        accumulate=together,
        precision="float16",
        loss_scale=scale,
        clip_norm=clip_norm,
    )
    deployment = session.deploy(in_a_row(session.graph, 0), method, SPEC)
    order = random_order(SAMPLES, MINIBATCHES, BATCH)
    _, results = session.run(deployment, MINIBATCHES, RunOptions(order=order))
    state, _ = session.collect(deployment)
    module, skipped = _train_with_scaler(scale, together, clip_norm)
    assert results[0].skipped_updates == skipped
    assert (skipped > 0) == (scale > 1024)
    assert skipped < MINIBATCHES // together
    assert_state(state, module, rtol=1e-5, atol=1e-6)


class PartlyExact(nn.Module):
    """Turns autocast off where it needs float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.exact = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        with torch.autocast("cpu", enabled=False):
            x = torch.tanh(self.exact(x.float()))
        return self.last(x)


def partly_exact() -> Task:
    (_, features), targets = samples("float32")
    return Task(PartlyExact(), (features[:BATCH],), targets[:BATCH], F.cross_entropy)


def test_a_region_without_autocast_stays_exact() -> None:
    (_, features), targets = samples("float32")
    order = random_order(SAMPLES, MINIBATCHES, BATCH)
    reference = ModelReference.named("tests.runtime.stage.passes.test_mixed_precision:partly_exact")
    method = Method(schedule="gpipe", policy="sync", precision="bfloat16")
    with ClusterSession(capture(reference), workers=1) as session:
        session.use_samples([features], targets)
        deployment = session.deploy(in_a_row(session.graph, 0), method, SPEC)
        session.run(deployment, MINIBATCHES, RunOptions(order=order))
        state, _ = session.collect(deployment)
    module = reference.build().module
    optimizer = torch.optim.SGD(trained_parameters(module), lr=RATE, momentum=0.9)
    minibatches = draw([features], targets, order)
    train(module, F.cross_entropy, optimizer, minibatches, autocast=torch.bfloat16)
    # Fused updates may round the last bit otherwise; bfloat16 would be off by a thousandth.
    assert_state(state, module, rtol=1e-5, atol=1e-7)
