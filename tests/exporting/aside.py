"""A model in whose middle there are views, and weights that no input leads to."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task

WIDTH = 6


class Aside(nn.Module):
    """What leaves the second of three stages: a view of what it computes, and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.both = nn.Linear(WIDTH, 2 * WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(torch.tanh(self.first(x)))
        pair = self.both(x).unflatten(-1, (2, WIDTH))
        scale = torch.exp(torch.tanh(self.scale))
        return self.last(torch.tanh((pair * scale).sum(1))) * scale.sum()


def task() -> Task:
    torch.manual_seed(1)
    inputs = torch.randn(8, WIDTH, dtype=torch.float64)
    return Task(Aside().double(), (inputs,), torch.randint(0, 3, (8,)), F.cross_entropy)
