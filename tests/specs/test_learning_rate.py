"""Tabulated learning rates against torch's schedulers, stepped as torch's documentation shows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD, Optimizer, lr_scheduler

from drlpp.errors import InvalidInput
from drlpp.specs.learning_rate import LearningRateSchedule

PER_EPOCH = 5
EPOCHS = 6

SCHEDULES: dict[str, tuple[dict[str, Any], Callable[[Optimizer], lr_scheduler.LRScheduler]]] = {
    "StepLR": ({"step_size": 2}, lambda o: lr_scheduler.StepLR(o, 2)),
    "multistep": (
        {"milestones": [1, 4], "gamma": 0.5},
        lambda o: lr_scheduler.MultiStepLR(o, [1, 4], gamma=0.5),
    ),
    "cosineannealinglr": ({"T_max": 6}, lambda o: lr_scheduler.CosineAnnealingLR(o, 6)),
    "LINEAR": (
        {"start_factor": 0.1, "total_iters": 4},
        lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=4),
    ),
    "CosineAnnealingWarmRestarts": (
        {"T_0": 2, "T_mult": 2},
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, T_mult=2),
    ),
    "onecycle": (
        {"max_lr": 0.5, "total_steps": EPOCHS * PER_EPOCH},
        lambda o: lr_scheduler.OneCycleLR(o, 0.5, EPOCHS * PER_EPOCH),
    ),
    "cyclic": (
        {"base_lr": 0.1, "max_lr": 0.4, "step_size_up": 3, "mode": "triangular2"},
        lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.4, 3, mode="triangular2"),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("interval", ["epoch", "minibatch"])
def test_rates_are_those_of_a_plain_loop(name: str, interval: str) -> None:
    options, build = SCHEDULES[name]
    weight = torch.zeros(1, requires_grad=True)
    optimizer = SGD([weight], lr=0.2, momentum=0.9)
    scheduler = build(optimizer)
    expected = []
    for _ in range(EPOCHS):
        for _ in range(PER_EPOCH):
            weight.grad = torch.ones(1)
            expected.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if interval == "minibatch" and len(expected) < EPOCHS * PER_EPOCH:
                scheduler.step()
        if interval == "epoch":
            scheduler.step()
    schedule = LearningRateSchedule.parse(name, interval=interval, **options)
    assert schedule.rates(0.2, EPOCHS * PER_EPOCH, PER_EPOCH) == expected
    assert len(set(expected)) > 1


@given(
    warm_up=st.integers(0, 20),
    minibatches=st.integers(0, 40),
    per_epoch=st.integers(1, 9),
    interval=st.sampled_from(["epoch", "minibatch"]),
)
def test_warm_up_rises_linearly_to_where_the_schedule_begins(
    warm_up: int, minibatches: int, per_epoch: int, interval: str
) -> None:
    schedule = LearningRateSchedule.parse(
        "exponential", interval=interval, warm_up=warm_up, gamma=0.5
    )
    rates = schedule.rates(0.1, minibatches, per_epoch)
    for minibatch, rate in enumerate(rates):
        if minibatch < warm_up:
            assert rate == pytest.approx(0.1 * (minibatch + 1) / (warm_up + 1))
        elif interval == "minibatch":
            assert rate == pytest.approx(0.1 * 0.5 ** (minibatch - warm_up))
        else:
            # Changes come at the ends of epochs, counted from the one in which warm-up ended.
            passed = minibatch // per_epoch - warm_up // per_epoch
            assert rate == pytest.approx(0.1 * 0.5**passed)
    assert len(rates) == minibatches


def test_a_schedule_that_does_not_fit_the_training_is_refused() -> None:
    short = LearningRateSchedule.parse("onecycle", max_lr=0.1, total_steps=10, interval="minibatch")
    with pytest.raises(InvalidInput, match="The specified number of total steps is 10"):
        short.rates(0.1, 20, 5)
    negative = LearningRateSchedule.parse("cosineannealing", T_max=4, eta_min=-0.1)
    with pytest.raises(InvalidInput, match=r"gives the learning rate -0\.\d+ after 3 epochs"):
        negative.rates(0.1, 20, 5)
