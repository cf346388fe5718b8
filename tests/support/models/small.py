"""Small models that the tests of several folders share."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from drlpp.models.task import Task


class Forked(nn.Module):
    """A stem that forks into an LSTM and a convolution, joined by attention, with skips."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.stem = nn.Linear(8, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        stem = torch.tanh(self.stem(self.embedding(tokens)))
        left, _ = self.lstm(stem)
        right = F.relu(self.norm(self.conv(stem.transpose(1, 2)))).transpose(1, 2)
        joined, _ = self.attention(left, right, right, need_weights=False)
        joined = self.dropout(joined) + stem
        return self.head(F.relu(self.hidden(joined.mean(1))))


def forked(batch_size: int = 8, dtype: str = "float64", dropout: float = 0.2) -> Task:
    """The forked model as a classification task; float64 makes rounding errors negligible."""
    module = Forked(dropout).to(getattr(torch, dtype))
    tokens = torch.randint(0, 20, (batch_size, 6))
    targets = torch.randint(0, 5, (batch_size,))
    return Task(module, (tokens,), targets, F.cross_entropy, _correct)


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).float()


def perceptron(batch_size: int = 8, layers: int = 6, width: int = 16) -> Task:
    """A plain chain of linear layers."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    module = nn.Sequential(*blocks, nn.Linear(width, 5))
    targets = torch.randint(0, 5, (batch_size,))
    return Task(module, (torch.randn(batch_size, width),), targets, F.cross_entropy, _correct)


def without_loss() -> tuple[nn.Module, Tensor]:
    """The least that a factory may return."""
    return nn.Linear(4, 4), torch.randn(2, 4)


def separable(example_inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], ...]:
    """Data that a linear model can learn: the class is the largest of the first five features."""
    generator = torch.Generator().manual_seed(3)
    width = example_inputs[0].shape[1]
    parts = []
    for count in (96, 29):
        inputs = torch.randn(count, width, generator=generator)
        parts.append((inputs, inputs[:, :5].argmax(1)))
    return tuple(parts)


class _Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from zip(self.inputs, self.targets, strict=True)


def separable_without_end(example_inputs: tuple[Tensor, ...]) -> tuple[DataLoader, None]:
    """The same again and again, and nothing held out."""
    train, _ = separable(example_inputs)
    return DataLoader(_Endless(*train), len(example_inputs[0])), None
