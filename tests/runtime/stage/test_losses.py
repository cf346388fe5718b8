"""The loss of every part is collected, and the first that is no number is noticed."""

import math

import torch

from drlpp.runtime.stage.stage_runner import Losses


def test_the_first_loss_that_is_not_finite_is_noted_with_its_part() -> None:
    losses = Losses()
    for minibatch, value in enumerate((1.0, math.inf, math.nan)):
        losses.add((minibatch, 0), torch.tensor(value))
    assert losses.not_finite == ((1, 0), math.inf)
    assert [*losses.take()] == [(0, 0), (1, 0), (2, 0)]
    assert losses.not_finite is None
