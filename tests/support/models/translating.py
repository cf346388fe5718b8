"""A Transformer of torch's layers: two branches, whose second reads the first in every layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task

BATCH, LENGTH, WORDS, HIDDEN = 4, 5, 11, 8


class Translating(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        sizes = (HIDDEN, 2, 12)
        self.source, self.target = nn.Embedding(WORDS, HIDDEN), nn.Embedding(WORDS, HIDDEN)
        self.register_buffer("positions", torch.randn(LENGTH, HIDDEN), persistent=False)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(*sizes, batch_first=True) for _ in range(layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(*sizes, batch_first=True) for _ in range(layers)
        )
        self.projection = nn.Linear(HIDDEN, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states = self.source(source) + self.positions
        for layer in self.encoder:
            states = layer(states)
        x = self.target(target) + self.positions
        for layer in self.decoder:
            x = layer(x, states)
        return self.projection(x)


def translating(layers: int = 2, dtype: str = "float32") -> Task:
    """Give random sentences to translate."""
    source, target, following = (torch.randint(WORDS, (BATCH, LENGTH)) for _ in range(3))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    module = Translating(layers).to(getattr(torch, dtype))
    return Task(module, (source, target), following, loss)
