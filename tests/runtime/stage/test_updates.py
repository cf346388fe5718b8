"""What goes into an update: its learning rate, weight decay, the minibatches it is made of."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.schedule.method import Method
from drlpp.specs.learning_rate import LearningRateSchedule
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.gathering import BATCH, REFERENCE, SAMPLES, objective, samples
from tests.support.training.pipelines import (
    Minibatch,
    assert_state,
    draw,
    in_a_row,
    random_order,
    train,
    trained_parameters,
)

MINIBATCHES, RATE = 8, 0.2
SGD = OptimizerSpec(name="sgd", options={"lr": RATE, "momentum": 0.9})
CLIP_NORM = 2.0
GPIPE = Method(schedule="gpipe", policy="sync", microbatches=2)


@pytest.fixture(scope="module")
def session() -> Iterator[ClusterSession]:
    with ClusterSession(capture(REFERENCE), workers=3) as session:
        session.use_samples(*samples())
        yield session


def _order() -> Tensor:
    return random_order(SAMPLES, MINIBATCHES, BATCH)


def _minibatches() -> list[Minibatch]:
    return draw(*samples(), _order())


def _on_workers(
    session: ClusterSession,
    accelerators: tuple[int, ...],
    method: Method,
    spec: OptimizerSpec = SGD,
    rates: list[float] | None = None,
) -> dict[str, Tensor]:
    deployment = session.deploy(in_a_row(session.graph, *accelerators), method, spec)
    session.run(deployment, MINIBATCHES, RunOptions(order=_order(), rates=rates))
    state, _ = session.collect(deployment)
    return state


def _plain() -> tuple[nn.Module, Optimizer]:
    module = REFERENCE.build().module
    return module, torch.optim.SGD(trained_parameters(module), lr=RATE, momentum=0.9)


SCHEDULES: dict[
    str, tuple[LearningRateSchedule, Callable[[Optimizer], lr_scheduler.LRScheduler]]
] = {
    "step": (
        LearningRateSchedule.parse("step", interval="minibatch", step_size=2, gamma=0.5),
        lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5),
    ),
    "one cycle": (
        LearningRateSchedule.parse(
            "onecycle", interval="minibatch", max_lr=0.4, total_steps=MINIBATCHES
        ),
        lambda optimizer: lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.4, total_steps=MINIBATCHES, cycle_momentum=False
        ),
    ),
    "warm-up": (
        LearningRateSchedule.parse("constant", interval="minibatch", factor=1.0, warm_up=3),
        lambda optimizer: lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rates_of_minibatches(session: ClusterSession, name: str) -> None:
    schedule, torchs = SCHEDULES[name]
    rates = schedule.rates(RATE, MINIBATCHES, MINIBATCHES)
    state = _on_workers(session, (0, 1, 2), GPIPE, rates=rates)
    module, optimizer = _plain()
    train(module, objective, optimizer, _minibatches(), schedule=torchs(optimizer))
    assert_state(state, module)


def test_an_update_of_several_minibatches_has_the_rate_of_the_last(session: ClusterSession) -> None:
    rates = [0.2, 0.1, 0.3, 0.05, 0.15, 0.25, 0.01, 0.4]
    method = Method(schedule="1f1b-flush", policy="sync", accumulate=3)
    state = _on_workers(session, (0, 1, 1), method, rates=rates)
    module, optimizer = _plain()
    for first in range(0, MINIBATCHES, 3):
        minibatches = _minibatches()[first : first + 3]
        optimizer.param_groups[0]["lr"] = rates[first + len(minibatches) - 1]
        train(module, objective, optimizer, minibatches, together=3)
    assert_state(state, module)


@pytest.mark.parametrize(
    ("accelerators", "options", "together"),
    [
        ((0, 0), {"schedule": "1f1b", "accumulate": 3}, 3),
        ((0, 0), {"schedule": "1f1b", "microbatches": 2}, 1),
        ((0, 1, 2), {"schedule": "1f1b-flush", "microbatches": 2, "accumulate": 2}, 2),
        ((0, 1, 1), {"schedule": "gpipe"}, 1),
        ((0, 0, 1), {"schedule": "1f1b-flush", "microbatches": 4}, 1),
    ],
)
def test_accumulated_and_clipped_gradients_are_those_of_all_stages(
    session: ClusterSession, accelerators: tuple[int, ...], options: dict[str, int], together: int
) -> None:
    """Some of the gradients are larger than the norm, others are not."""
    method = Method.model_validate({**options, "policy": "sync", "clip_norm": CLIP_NORM})
    state = _on_workers(session, accelerators, method)
    module, optimizer = _plain()
    train(module, objective, optimizer, _minibatches(), together=together, clip_norm=CLIP_NORM)
    assert_state(state, module)
    module, optimizer = _plain()
    larger = set()
    for minibatch in _minibatches():
        train(module, objective, optimizer, [minibatch])
        gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
        larger.add(bool(nn.utils.get_total_norm(gradients) > CLIP_NORM))
    assert larger == {True, False}


class Twins(nn.Module):
    """Weights whose gradients are one tensor to autograd, and that of the input as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.one = nn.Parameter(torch.randn(8, 4))
        self.other = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + (self.one + self.other)


def twins() -> tuple[nn.Module, torch.Tensor]:
    """Without a loss the mean square of the outputs stands in."""
    return Twins().double(), torch.ones(8, 4, dtype=torch.float64)


def test_gradients_that_share_memory_are_scaled_once() -> None:
    reference = ModelReference.named("tests.runtime.stage.test_updates:twins")
    captured = capture(reference)
    method = Method(schedule="gpipe", policy="sync", clip_norm=0.01)
    spec = OptimizerSpec(name="sgd", options={"lr": 0.5, "momentum": 0.0})
    with ClusterSession(captured, workers=2) as session:
        deployment = session.deploy(in_a_row(session.graph, 0, 1), method, spec)
        session.run(deployment, 1)
        state, _ = session.collect(deployment)
    module = reference.build().module
    module(torch.ones(8, 4, dtype=torch.float64)).square().mean().backward()
    nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    torch.optim.SGD(module.parameters(), lr=0.5).step()
    assert_state(state, module)
