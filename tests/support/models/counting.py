"""A model whose weights say how often it was trained on every sample."""

import torch
from torch import Tensor, nn

from drlpp.models.task import Task
from drlpp.specs.data import Data, Samples

SAMPLES = 800
BATCH_SIZE = 8


class Counting(nn.Module):
    """Layers that read the input alone: the gradient of each is the sum of the inputs."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        equal = [nn.Linear(SAMPLES, width, bias=False, dtype=torch.float64) for _ in range(layers)]
        for layer in equal:
            nn.init.zeros_(layer.weight)
        self.layers = nn.ModuleList(equal)

    def forward(self, sample: Tensor) -> Tensor:
        total = self.layers[0](sample)
        for layer in self.layers[1:]:
            total = total + layer(sample)
        return total


def _sum(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum() + targets.sum()


def counting(layers: int = 4, width: int = 1) -> Task:
    """With SGD of rate 1, a weight is minus the number of times that its sample was trained on."""
    inputs = torch.zeros(BATCH_SIZE, SAMPLES, dtype=torch.float64)
    return Task(
        Counting(layers, width), (inputs,), torch.zeros(BATCH_SIZE, dtype=torch.float64), _sum
    )


def every_sample(_inputs: object = None) -> Data:
    """Sample k is 1 at k, and 0 elsewhere; none is held out but the first."""
    inputs = torch.eye(SAMPLES, dtype=torch.float64)
    targets = torch.zeros(SAMPLES, dtype=torch.float64)
    return Data(Samples((inputs,), targets), Samples((inputs[:8],), targets[:8]))


def counts(state: dict[str, Tensor]) -> set[tuple[str, float]]:
    """Return how often samples were trained on, by layer: one value for each where all are even."""
    return {(name, -float(count)) for name, weight in state.items() for count in weight.flatten()}
