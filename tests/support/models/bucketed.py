"""A small decoder for sentences of three lengths, and batches of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp import Task
from drlpp.runtime import Minibatches
from drlpp.schedule.actions import MicrobatchId
from drlpp.specs.data import Samples

WORDS, BATCH = 11, 4
LENGTHS = (8, 5, 3)


class Decoder(nn.Module):
    """With constants that are those of a length, and a buffer that no ``state_dict`` has."""

    mask: Tensor

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 6)
        self.inner = nn.Linear(6, 6)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(6, WORDS)
        self.register_buffer("mask", torch.ones(8, 8).tril().log(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        places = torch.tensor([[place / length] for place in range(length)], dtype=torch.float64)
        hidden = self.words(tokens) + places.to(self.head.weight.dtype)
        weights = hidden @ hidden.transpose(1, 2) + self.mask[:length, :length]
        hidden = hidden + self.dropout(torch.tanh(self.inner(weights.softmax(-1) @ hidden)))
        return self.head(hidden)


def next_words(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over samples, whatever their lengths."""
    return F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(1).mean()


def right_words(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(-1) == targets).double().mean(1)


def sentences(length: int, count: int = BATCH, seed: int = 0) -> Samples:
    draw = torch.Generator().manual_seed(100 * seed + length)
    words = torch.randint(WORDS, (count, length + 1), generator=draw)
    return Samples((words[:, :-1].contiguous(),), words[:, 1:].contiguous())


def bucketed(dropout: float = 0.0) -> Task:
    torch.manual_seed(3)
    first, *others = (tuple(sentences(length)) for length in LENGTHS)
    module = Decoder(dropout).double()
    return Task(module, *first, next_words, right_words, others)


def minibatches(count: int, seed: int = 1) -> list[Samples]:
    """Of lengths at random, each of them at least once."""
    draw = random.Random(seed)
    lengths = [*LENGTHS, *draw.choices(LENGTHS, k=count - len(LENGTHS))]
    draw.shuffle(lengths)
    return [sentences(length, seed=number) for number, length in enumerate(lengths, 1)]


def given(batches: Sequence[Samples]) -> Iterator[Samples]:
    """As a run loads them."""
    yield from batches


@dataclass(frozen=True)
class OfSeveralShapes(Minibatches):
    """Minibatches for the reference executor, one after the other."""

    batches: Sequence[Samples] = ()

    def _of(self, minibatch: int) -> Minibatches:
        return Minibatches(*self.batches[minibatch], microbatches=self.microbatches)

    def inputs(self, part: MicrobatchId) -> tuple[Tensor, ...]:
        return self._of(part[0]).inputs(part)

    def targets(self, part: MicrobatchId) -> tuple[Tensor, ...]:
        return self._of(part[0]).targets(part)

    def bucket_of(self, minibatch: int) -> int:
        return LENGTHS.index(self.batches[minibatch].targets.shape[1])
