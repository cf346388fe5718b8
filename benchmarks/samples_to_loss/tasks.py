"""What the study trains: decoders on the source of Python's library, and a CNN on digits."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.deep_models import (
    VOCABULARY,
    digits_cnn,
    encode,
    next_character_loss,
    sequences,
)
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.specs.data import Data, Samples, digits

_HELD_OUT_FILES = 10
"""Every tenth file is held out."""
_HELD_OUT_SAMPLES = 320
_NO_PROSE = {"site-packages", "test", "tests", "encodings", "idlelib", "pydoc_data"}


class Block(nn.Module):
    """A block of a decoder, normalised first: causal attention of four heads, and a perceptron.

    Shapes:
        ``(batch, length, width)`` to the same.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, 4 * width)
        self.second = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Let every position look at those up to it."""
        projected = self.attention_in(self.attention_norm(hidden))
        query, key, value = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in projected.chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.second(F.gelu(self.first(self.norm(hidden))))


class Decoder(nn.Module):
    """A language model of characters, whose positions are learned.

    Shapes:
        ``(batch, length)`` of indices to ``(batch, length, vocabulary)``.
    """

    def __init__(self, width: int, blocks: int, length: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(VOCABULARY), width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(VOCABULARY))

    def forward(self, characters: Tensor) -> Tensor:
        """Return scores of the character that comes next, at every position."""
        hidden = self.characters(characters) + self.positions
        return self.head(self.norm(self.blocks(hidden)))


def decoder(batch_size: int = 16, width: int = 64, blocks: int = 6, length: int = 32) -> Task:
    """Return the task of the next character; its loss is in nats a character."""
    characters = torch.zeros(batch_size, length, dtype=torch.long)
    module = Decoder(width, blocks, length)
    return Task(module, (characters,), characters.clone(), next_character_loss)


@lru_cache(maxsize=1)
def library_text() -> tuple[str, str]:
    """Return the source of Python's own library, without its tests, and the files held out of it.

    They are some 9 million characters of prose and code, and depend on the version of Python.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not _NO_PROSE & {*path.relative_to(root).parts}
    ]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    held_out = texts[::_HELD_OUT_FILES]
    del texts[::_HELD_OUT_FILES]
    return "".join(texts), "".join(held_out)


def library_data(length: int) -> Data:
    """Return sequences of ``length`` characters with those that follow on each.

    Inputs and targets have the shape ``(sequences, length)``, int64. Of what is held out, some
    hundred sequences are taken at equal distances.
    """
    train, held_out = (sequences(encode(text), length) for text in library_text())
    chosen = torch.linspace(0, len(held_out) - 1, _HELD_OUT_SAMPLES).long()
    inputs = (held_out.inputs[0][chosen],)
    return Data(train=train, test=Samples(inputs, held_out.targets[chosen]))


@dataclass(frozen=True)
class StudyTask:
    """A task of the study.

    Attributes:
        title: what it is, for the report.
        model: of minibatches of ``batch_size`` samples.
        load: samples to train on and held-out ones.
        batch_size: of a minibatch.
        minibatches: after which plain training's loss is the one to reach.
    """

    title: str
    model: ModelReference
    load: Callable[[], Data]
    batch_size: int
    minibatches: int


def _decoder_task(title: str, width: int, length: int, minibatches: int) -> StudyTask:
    return StudyTask(
        title=title,
        model=ModelReference.named(
            "benchmarks.samples_to_loss.tasks:decoder", width=width, length=length
        ),
        load=lambda: library_data(length),
        batch_size=16,
        minibatches=minibatches,
    )


TASKS: dict[str, StudyTask] = {
    "text": _decoder_task("Decoder of 2.8 million weights, text", 192, 64, 1000),
    "text-small": _decoder_task("Decoder of 0.3 million weights, text", 64, 32, 400),
    "digits": StudyTask(
        title="CNN of 25 thousand weights, digits",
        model=ModelReference.named("benchmarks.deep_models:digits_cnn", batch_size=32),
        load=lambda: digits(digits_cnn().inputs),
        batch_size=32,
        minibatches=400,
    ),
}
