"""PPO's objective, choice by choice."""

import math

import pytest
import torch

from drlpp.agents.paper.update import clipped_surrogate, mean


def test_the_ratio_is_clipped_by_choice() -> None:
    ratios = [1.0, 2.0, 2.0, 0.5, 0.5]
    advantages = [3.0, 1.0, -1.0, 1.0, -1.0]
    surrogate = clipped_surrogate(
        torch.tensor([math.log(ratio) for ratio in ratios]),
        torch.zeros(5),
        torch.tensor(advantages),
        0.2,
    )
    assert surrogate.loss.item() == pytest.approx(-(3.0 + 1.2 - 2.0 + 0.5 - 0.8) / 5)
    assert surrogate.clipped == 4
    assert surrogate.choices == 5
    assert surrogate.kl == pytest.approx(sum(ratio - 1 - math.log(ratio) for ratio in ratios))


def test_no_choices_have_no_loss() -> None:
    empty = torch.zeros(0)
    assert clipped_surrogate(empty, empty, empty, 0.2).loss.item() == 0.0
    assert mean(empty).item() == 0.0
