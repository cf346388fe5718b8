"""A small decoder as others write it: embedding, a list of layers, a norm, a head."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(x)))


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int = 8) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(20, width)
        self.layers = nn.ModuleDict({str(k): Layer(width) for k in range(layers)})
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens) if self.tok_embeddings is not None else tokens
        for layer in self.layers.values():
            h = layer(h)
        h = self.norm(h) if self.norm is not None else h
        return self.output(h) if self.output is not None else h


def decoder(layers: int = 6, batch_size: int = 8) -> Task:
    """Logits of the next token."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    tokens, targets = (torch.randint(0, 20, (batch_size, 4)) for _ in range(2))
    return Task(Decoder(layers), (tokens,), targets, loss)
