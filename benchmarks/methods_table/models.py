"""Models and an optimizer of the table of methods.

Rounding makes two correct runs differ, and training can blow a rounding error up to anything: where
a gradient is nothing but cancelled rounding (a bias before batch normalisation), where a function
has a kink, or where an optimizer divides by almost nothing. The model here avoids all three, so
that a difference above rounding means a fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task

TOKENS, CLASSES, LENGTH, WIDTH = 12, 5, 6, 8
BLOCKS = 8


class Forked(nn.Module):
    """A stem that forks into an LSTM and a convolution, with a skip from the stem to their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.mixing = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, CLASSES) of tokens (batch, LENGTH)."""
        stem = torch.tanh(self.stem(self.embedding(tokens)))
        left, _ = self.lstm(stem)
        right = torch.tanh(self.conv(stem.transpose(1, 2))).transpose(1, 2)
        joined = self.dropout(torch.tanh(self.mixing(left + right))) + stem
        return self.head(torch.tanh(self.hidden(joined.mean(1))))


def forked(batch_size: int = 8, dtype: str = "float32") -> Task:
    """Return the forked model as a classification task."""
    tokens = torch.randint(0, TOKENS, (batch_size, LENGTH))
    targets = torch.randint(0, CLASSES, (batch_size,))
    return Task(Forked().to(getattr(torch, dtype)), (tokens,), targets, F.cross_entropy)


def wide() -> Task:
    """Return a chain whose weights are all of its memory: a block holds 32.3 MiB of them.

    Workers give blocks above 32 MiB back to the system as soon as they are free, so that resident
    memory is what is in use. Smaller ones stay with malloc, where holes between blocks count too.
    """
    width, batch_size = 2912, 4
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(BLOCKS)]
    return Task(nn.Sequential(*blocks), (torch.randn(batch_size, width),))


class Lion(torch.optim.Optimizer):
    """A third party's optimizer: the sign of an interpolated momentum (Chen et al., 2023)."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
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
