"""A model whose inputs, targets and outputs are structures of tensors, and data for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.specs.batches import chosen
from drlpp.specs.data import Data, Samples

BATCH = 4


class Structured(nn.Module):
    """Takes tokens, and a mask with two more tensors somewhere in it; ``labels`` give its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.mixing = nn.Linear(6, 6)
        self.shift = nn.Linear(3, 6)
        self.norm = nn.LayerNorm(6)
        self.words = nn.Linear(6, 11)
        self.number = nn.Linear(6, 1)

    def forward(
        self, tokens: Tensor, extra: Any, labels: dict[str, Tensor] | None = None
    ) -> dict[str, Any]:
        mask, (offset, more) = extra["mask"], extra["numbers"]
        hidden = torch.tanh(self.mixing(self.embedding(tokens)))
        hidden = hidden + self.shift(offset * more["scale"]).unsqueeze(1)
        hidden = self.norm(hidden) * mask.unsqueeze(-1)
        outputs: dict[str, Any] = {
            "heads": (self.words(hidden), self.number(hidden.mean(1)).squeeze(1))
        }
        if labels is not None:
            outputs["loss"] = both(outputs, labels)
        return outputs


def both(outputs: dict[str, Any], targets: dict[str, Tensor]) -> Tensor:
    """The loss of two heads on two targets."""
    words, number = outputs["heads"]
    return F.cross_entropy(words.flatten(0, 1), targets["words"].flatten()) + F.mse_loss(
        number, targets["number"]
    )


def near(outputs: dict[str, Any], targets: dict[str, Tensor]) -> Tensor:
    """Whether the number is near the right one, for each sample."""
    return ((outputs["heads"][1] - targets["number"]).abs() < 1).double()


def samples(count: int, seed: int = 0) -> Samples:
    """Inputs by keyword and targets, as structures."""
    draw = torch.Generator().manual_seed(seed)
    mask = (torch.rand(count, 5, generator=draw) < 0.8).double()
    offset = torch.randn(count, 3, generator=draw).double()
    scale = torch.rand(count, 1, generator=draw).double()
    inputs = {
        "extra": {"numbers": (offset, {"scale": scale}), "mask": mask},
        "tokens": torch.randint(11, (count, 5), generator=draw),
    }
    targets = {
        "number": torch.randn(count, generator=draw).double(),
        "words": torch.randint(11, (count, 5), generator=draw),
    }
    return Samples(inputs, targets)


def with_labels(given: Samples) -> Samples:
    """The same where the targets are among the inputs, of a model that makes its own loss."""
    return Samples({**given.inputs, "labels": given.targets}, None)


def by_position(given: Samples) -> Samples:
    """The same with inputs by position."""
    return Samples((given.inputs["tokens"], given.inputs["extra"]), given.targets)


def data() -> Data:
    """Samples to train on, a minibatch more than whole ones, and others that fill none."""
    return Data(samples(22, seed=1), samples(7, seed=2))


def by_keyword() -> Task:
    """Targets apart, and a loss and a score of them."""
    few = samples(BATCH)
    return Task(Structured().double(), few.inputs, few.targets, both, near)


def positional() -> Task:
    """The same model, called by position."""
    few = by_position(samples(BATCH))
    return Task(Structured().double(), few.inputs, few.targets, both, near)


def own_loss() -> Task:
    """The model that makes its own loss."""
    few = with_labels(samples(BATCH))
    return Task(Structured().double(), few.inputs)


def rows(given: Samples) -> list[Samples]:
    """The samples one by one, as a data set has them."""
    count = len(given)
    return [
        Samples(*(chosen(part, torch.tensor(i)) for part in given if part is not None))
        if given.targets is not None
        else Samples(chosen(given.inputs, torch.tensor(i)), None)
        for i in range(count)
    ]
