"""Clipping by the norm of all gradients, wherever they are, against a plain loop that clips."""

from collections.abc import Iterator

import pytest
import torch

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
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

MINIBATCHES = 7
# Some of the gradients are larger than this norm, others are not.
CLIP_NORM = 2.0


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    with ClusterSession(capture(REFERENCE), workers=4) as session:
        session.use_samples(*samples())
        yield session


@pytest.mark.parametrize(
    ("accelerators", "options", "together"),
    [
        ((0,), {"schedule": "1f1b"}, 1),
        ((0, 0, 0), {"schedule": "1f1b"}, 3),
        ((0, 0), {"schedule": "1f1b", "accumulate": 3}, 3),
        ((0,), {"schedule": "1f1b", "microbatches": 4}, 1),
        ((0, 0), {"schedule": "1f1b", "microbatches": 2}, 1),
        ((0, 1, 2), {"schedule": "gpipe"}, 1),
        ((0, 1, 2, 3), {"schedule": "gpipe", "microbatches": 4}, 1),
        ((0, 1, 2), {"schedule": "1f1b-flush", "microbatches": 2, "accumulate": 2}, 2),
        ((0, 1, 1, 2), {"schedule": "gpipe"}, 1),
        ((0, 0, 1, 1), {"schedule": "1f1b-flush", "microbatches": 4}, 1),
        ((0, 0, 0, 1), {"schedule": "gpipe", "microbatches": 2, "accumulate": 3}, 3),
    ],
)
def test_the_norm_is_that_of_all_gradients(
    session: ClusterSession, accelerators: tuple[int, ...], options: dict[str, int], together: int
) -> None:
    order = random_order(SAMPLES, MINIBATCHES, BATCH)
    method = Method.model_validate({**options, "policy": "sync", "clip_norm": CLIP_NORM})
    # Unlike Adam, SGD tells a scaled gradient from another.
    spec = OptimizerSpec(name="sgd", options={"lr": 0.1, "momentum": 0.9})
    deployment = session.deploy(in_a_row(session.graph, *accelerators), method, spec)
    session.run(deployment, MINIBATCHES, RunOptions(order=order))
    state, _ = session.collect(deployment)

    module = REFERENCE.build().module
    optimizer = torch.optim.SGD(trained_parameters(module), lr=0.1, momentum=0.9)
    minibatches = draw(*samples(), order)
    train(module, objective, optimizer, minibatches, together=together, clip_norm=CLIP_NORM)
    assert_state(state, module)


def test_clipping_has_something_to_do() -> None:
    """Of the plain loop's gradients some are clipped, and some are left alone."""
    module = REFERENCE.build().module
    optimizer = torch.optim.SGD(trained_parameters(module), lr=0.1, momentum=0.9)
    larger = set()
    for minibatch in draw(*samples(), random_order(SAMPLES, MINIBATCHES, BATCH)):
        train(module, objective, optimizer, [minibatch])
        gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
        larger.add(bool(torch.nn.utils.get_total_norm(gradients) > CLIP_NORM))
    assert larger == {True, False}


class Twins(torch.nn.Module):
    """Weights whose gradients are one tensor to autograd, and that of the input as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.one = torch.nn.Parameter(torch.randn(8, 4))
        self.other = torch.nn.Parameter(torch.randn(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + (self.one + self.other)


def twins() -> tuple[torch.nn.Module, torch.Tensor]:
    """Without a loss the mean square of the outputs stands in."""
    return Twins().double(), torch.ones(8, 4, dtype=torch.float64)


def test_gradients_that_share_memory_are_scaled_once() -> None:
    reference = ModelReference.named("tests.runtime.stage.test_clipping:twins")
    captured = capture(reference)
    method = Method(schedule="gpipe", policy="sync", clip_norm=0.01)
    spec = OptimizerSpec(name="sgd", options={"lr": 0.5, "momentum": 0.0})
    with ClusterSession(captured, workers=2) as session:
        deployment = session.deploy(in_a_row(session.graph, 0, 1), method, spec)
        session.run(deployment, 1)
        state, _ = session.collect(deployment)
    module = reference.build().module
    module(torch.ones(8, 4, dtype=torch.float64)).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    torch.optim.SGD(module.parameters(), lr=0.5).step()
    assert_state(state, module)
