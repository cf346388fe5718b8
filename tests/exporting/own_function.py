"""A model with a ``torch.autograd.Function``."""

from typing import Any

import torch
from torch import Tensor, nn

from drlpp.models.task import Task


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(Doubled.apply(self.first(x)))


def task() -> Task:
    return Task(Model(), (torch.randn(8, 4),))
