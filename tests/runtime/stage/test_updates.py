"""What goes into an update: its learning rate, weight decay, the minibatches it is made of."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler

from drlpp.capturing.capture import capture
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
    "cosine": (
        LearningRateSchedule.parse("cosineannealing", interval="minibatch", T_max=MINIBATCHES),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=MINIBATCHES),
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


@pytest.mark.parametrize("accelerators", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_learning_rates_of_minibatches(
    session: ClusterSession, name: str, accelerators: tuple[int, ...]
) -> None:
    schedule, torchs = SCHEDULES[name]
    rates = schedule.rates(RATE, MINIBATCHES, MINIBATCHES)
    state = _on_workers(session, accelerators, GPIPE, rates=rates)
    module, optimizer = _plain()
    train(module, objective, optimizer, _minibatches(), schedule=torchs(optimizer))
    assert_state(state, module)


def test_learning_rates_of_epochs(session: ClusterSession) -> None:
    schedule = LearningRateSchedule.parse("exponential", gamma=0.5)
    rates = schedule.rates(RATE, MINIBATCHES, minibatches_per_epoch=3)
    state = _on_workers(session, (0, 1), GPIPE, rates=rates)
    module, optimizer = _plain()
    plain = lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for epoch in range(0, MINIBATCHES, 3):
        train(module, objective, optimizer, _minibatches()[epoch : epoch + 3])
        plain.step()
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


DECAYING: dict[str, tuple[str, type[Optimizer], dict[str, float | bool]]] = {
    "sgd": ("sgd", torch.optim.SGD, {"lr": RATE, "momentum": 0.9, "nesterov": True}),
    "adam": ("adam", torch.optim.Adam, {"lr": 0.01}),
    "adamw": ("adamw", torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "rmsprop": ("rmsprop", torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
}


@pytest.mark.parametrize("accelerators", [(0,), (0, 1, 1)])
@pytest.mark.parametrize("name", DECAYING)
def test_weight_decay(session: ClusterSession, name: str, accelerators: tuple[int, ...]) -> None:
    optimizer_name, kind, options = DECAYING[name]
    options = {**options, "weight_decay": 0.1}
    spec = OptimizerSpec(name=optimizer_name, options=options)
    state = _on_workers(session, accelerators, GPIPE, spec)
    module = REFERENCE.build().module
    optimizer = kind(trained_parameters(module), **options)  # type: ignore[call-arg]
    train(module, objective, optimizer, _minibatches())
    assert_state(state, module)


@pytest.mark.parametrize("accumulate", [2, 3])
@pytest.mark.parametrize(
    ("accelerators", "options"),
    [
        ((0,), {"schedule": "1f1b"}),
        ((0, 1), {"schedule": "gpipe"}),
        ((0, 1, 1), {"schedule": "1f1b-flush", "microbatches": 2}),
    ],
)
def test_accumulation_is_a_step_on_larger_minibatches(
    session: ClusterSession,
    accelerators: tuple[int, ...],
    options: dict[str, int],
    accumulate: int,
) -> None:
    method = Method.model_validate({**options, "policy": "sync", "accumulate": accumulate})
    state = _on_workers(session, accelerators, method)
    module, optimizer = _plain()
    train(module, objective, optimizer, _minibatches(), together=accumulate)
    assert_state(state, module)
