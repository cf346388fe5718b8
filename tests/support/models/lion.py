"""A third party's optimizer, which no rule of prediction knows by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Lion(torch.optim.Optimizer):
    """A third party's optimizer: the sign of an interpolated momentum (Chen et al., 2023)."""

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)
    ) -> None:
        defaults: dict[str, Any] = {"lr": lr, "betas": betas}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Set weights to W − lr · sign(β₁·m + (1 − β₁)·g), then update m with β₂."""
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                average = state.setdefault("momentum", torch.zeros_like(weight))
                weight.sub_(average.lerp(weight.grad, 1 - first).sign_(), alpha=group["lr"])
                average.lerp_(weight.grad, 1 - second)
