"""An encoder and a decoder: two branches, whose second reads the first in every layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task

BATCH, LENGTH, WORDS, HIDDEN = 4, 5, 11, 8


class Layer(nn.Module):
    """Attention to states, if only its own, and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 12), nn.Linear(12, HIDDEN)

    def forward(self, x: Tensor, states: Tensor) -> Tensor:
        x = x + F.scaled_dot_product_attention(self.query(x), states, states)
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Translating(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, HIDDEN), nn.Embedding(WORDS, HIDDEN)
        self.register_buffer("positions", torch.randn(LENGTH, HIDDEN), persistent=False)
        self.encoder = nn.ModuleList(Layer() for _ in range(layers))
        self.decoder = nn.ModuleList(Layer() for _ in range(layers))
        self.projection = nn.Linear(HIDDEN, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states = torch.tanh(self.source(source) + self.positions)
        for layer in self.encoder:
            states = layer(states, states)
        x = torch.tanh(self.target(target) + self.positions)
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
