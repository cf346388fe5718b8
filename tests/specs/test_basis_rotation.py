"""Adam in a rotated basis: what it is without a rotation, its formulas, what a rotation changes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from drlpp.errors import InvalidInput
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.plain_steps import rotated_adam

ROWS, COLUMNS, STEPS = 5, 4, 12
OPTIONS: dict[str, Any] = {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _train(
    spec: OptimizerSpec, start: Tensor, gradients: list[Tensor], *, fused: bool = False
) -> Tensor:
    weight = start.clone().requires_grad_()
    optimizer = build_optimizer(spec, [weight], fused=fused)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


def _gradients(*shape: int) -> list[Tensor]:
    # Of different scales, so that no basis is as good as another.
    scales = torch.logspace(0, -2, shape[-1], dtype=torch.float64)
    return [_random(*shape, seed=1 + step) * scales for step in range(STEPS)]


@pytest.mark.parametrize(
    ("shape", "options"),
    [((ROWS, COLUMNS), {"largest_side": 0}), ((ROWS,), {}), ((2, 3, 2), {})],
    ids=["no side is small enough", "a vector", "a kernel"],
)
def test_without_a_rotation_it_is_adamw(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    start, gradients = _random(*shape), _gradients(*shape)
    found = _train(OptimizerSpec.parse("basisrotation", **OPTIONS, **options), start, gradients)
    plain = start.clone().requires_grad_()
    optimizer = AdamW([plain], **OPTIONS)
    for gradient in gradients:
        plain.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(found, plain.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("largest_side", [8, 4], ids=["both sides", "columns only"])
@pytest.mark.parametrize("frequency", [1, 3, 100])
def test_it_is_the_algorithm(frequency: int, largest_side: int) -> None:
    """Algorithms 1 and 2 with explicit rotations of all that is kept, unsorted."""
    start, gradients = _random(ROWS, COLUMNS), _gradients(ROWS, COLUMNS)
    step = rotated_adam(
        OPTIONS["lr"],
        OPTIONS["betas"],
        OPTIONS["eps"],
        OPTIONS["weight_decay"],
        frequency,
        largest_side,
    )
    weight = start
    for gradient in gradients:
        weight = step(weight, gradient)
    spec = OptimizerSpec.parse(
        "basisrotation", frequency=frequency, largest_side=largest_side, **OPTIONS
    )
    torch.testing.assert_close(_train(spec, start, gradients), weight, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frequency": 0}, "frequency is 0; expected a whole number from 1 to"),
        ({"largest_side": -1}, "largest_side is -1; expected a whole number from 0 to"),
        ({"lr": -1, "adamw_lr": 1}, "Invalid learning rate: -1"),
        ({"betas": [0.9, 1.5]}, "Invalid beta parameter at index 1"),
    ],
)
def test_what_it_does_not_take(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        OptimizerSpec.parse("basisrotation", **options)
