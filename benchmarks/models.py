"""Models to measure the runtime with: chains of equal blocks, and how they are cut.

They have neither dropout nor batch normalisation, so that a minibatch gives the same gradients
whole, in microbatches and in shares, and every way to train them has to end with the same weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.graph import OpGraph
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option, Task
from drlpp.placement.placement import Placement

BLOCKS = 8
"""Of every model here."""

MODELS: dict[str, dict[str, Option]] = {
    "convolutions": {"batch_size": 32, "channels": 32, "side": 16},
    "feed_forwards": {"batch_size": 32, "hidden": 256, "tokens": 16},
}
"""Their options where figures are measured, by the name of the function."""

SMALL_MODELS: dict[str, dict[str, Option]] = {
    "convolutions": {"batch_size": 4, "channels": 4, "side": 8},
    "feed_forwards": {"batch_size": 4, "hidden": 16, "tokens": 4},
}
"""Likewise, to see a study work."""


class ConvolutionBlock(nn.Module):
    """Two 3 × 3 convolutions and a shortcut. Shapes: ``(batch, channels, side, side)``, kept."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Apply both."""
        return images + self.second(F.relu(self.first(images)))


class FeedForwardBlock(nn.Module):
    """Layer normalisation, two linear layers, a shortcut. Shapes: ``(…, hidden)``, kept."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.first = nn.Linear(hidden, 4 * hidden)
        self.second = nn.Linear(4 * hidden, hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply both."""
        return tokens + self.second(F.relu(self.first(self.norm(tokens))))


def convolutions(batch_size: int = 32, channels: int = 32, side: int = 16) -> Task:
    """Return convolutions: much computing for every weight, and activations of some size."""
    shape = (batch_size, channels, side, side)
    return _chain(lambda: ConvolutionBlock(channels), shape)


def feed_forwards(batch_size: int = 32, hidden: int = 256, tokens: int = 16) -> Task:
    """Return linear layers: many weights to update and to predict."""
    return _chain(lambda: FeedForwardBlock(hidden), (batch_size, tokens, hidden))


def _chain(block: Callable[[], nn.Module], shape: Sequence[int]) -> Task:
    inputs, targets = torch.randn(*shape), torch.randn(*shape)
    return Task(nn.Sequential(*(block() for _ in range(BLOCKS))), (inputs,), targets, F.mse_loss)


def reference(name: str, options: dict[str, Option]) -> ModelReference:
    """Return one of the models here, by the name of its function."""
    return ModelReference.named(f"{__name__}:{name}", **options)


def placement_of(graph: OpGraph, blocks: Sequence[int], replicas: Sequence[int]) -> Placement:
    """Return a placement with the given number of blocks and of replicas for each stage."""
    ends = list(accumulate(blocks))
    assert ends[-1] == BLOCKS
    stage_of_block = [next(k for k, end in enumerate(ends) if b < end) for b in range(BLOCKS)]
    return Placement.from_assignment(
        [stage_of_block[int(operator.module.split(".")[0])] for operator in graph.operators],
        [stage for stage, count in enumerate(replicas) for _ in range(count)],
    )


def stage_module(module: nn.Module, blocks: Sequence[int], stage: int) -> nn.Sequential:
    """Return the blocks of a stage; its parameters keep their names."""
    begin = sum(blocks[:stage])
    children = list(module.named_children())[begin : begin + blocks[stage]]
    return nn.Sequential(OrderedDict(children))
