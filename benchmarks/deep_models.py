"""Small models that are deep enough for 16 stages, and text as numbers: to study stale weights."""

from __future__ import annotations

from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.graph import OpGraph
from drlpp.models.task import Task
from drlpp.models.zoo.images import is_correct
from drlpp.placement.placement import Placement
from drlpp.specs.data import Data, Samples

VOCABULARY = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))
"""The newline and the 95 printable characters of ASCII; what is not in it is read as ``?``."""


def encode(text: str) -> Tensor:
    """Return the index in ``VOCABULARY`` of every character, shape ``(len(text),)``, int64."""
    index_of = torch.full((128,), VOCABULARY.index("?"))
    for index, character in enumerate(VOCABULARY):
        index_of[ord(character)] = index
    return index_of[torch.frombuffer(bytearray(text, "ascii", "replace"), dtype=torch.uint8).long()]


def sequences(text: Tensor, length: int) -> Samples:
    """Return sequences of ``length`` characters; targets are the characters that follow on each.

    Both have the shape ``(sequences, length)``, int64.
    """
    count = (len(text) - 1) // length
    inputs = text[: count * length].view(count, length)
    targets = text[1 : count * length + 1].view(count, length)
    return Samples((inputs,), targets)


def topics_text(length: int) -> Data:
    """Return sequences of ``length`` characters; targets are the characters that follow on each.

    The text is Python's own documentation, what ``help("topic")`` prints: some 460,000 characters
    of English prose with examples of code, which depend on the version of Python.

    The topics are joined in alphabetical order. The last tenth of the text is held out, so no
    held-out sequence overlaps with one that is trained on. Inputs and targets have the shape
    ``(sequences, length)``, int64.
    """
    text = encode("".join(topics[name] for name in sorted(topics)))
    held_out = len(text) // 10
    return Data(train=sequences(text[:-held_out], length), test=sequences(text[-held_out:], length))


def spread(samples: Samples, count: int) -> Samples:
    """Return so many of the samples, at equal distances."""
    chosen = torch.linspace(0, len(samples) - 1, count).long()
    return Samples(tuple(value[chosen] for value in samples.inputs), samples.targets[chosen])


def next_character_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all positions, in nats a character."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


class DecoderBlock(nn.Module):
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
        self.blocks = nn.Sequential(*(DecoderBlock(width) for _ in range(blocks)))
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


class ResidualBlock(nn.Module):
    """Two normalised 3×3 convolutions with a shortcut (ResNet's basic block).

    Group normalisation, not batch normalisation: 2BW would run a minibatch in parts of few samples,
    and only without statistics over the minibatch are the gradients of its parts, summed up, those
    of the whole, as which the study runs it. It also keeps running statistics, gathered with
    weights of the past, out of the comparison.

    Shapes:
        ``(batch, inputs, height, width)`` to ``(batch, outputs, height / stride, width / stride)``.
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(4, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(4, outputs)
        self.shortcut: nn.Module = (
            nn.Identity()
            if inputs == outputs
            else nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Apply both convolutions and the shortcut."""
        hidden = F.relu(self.first_norm(self.first(images)))
        return F.relu(self.shortcut(images) + self.second_norm(self.second(hidden)))


class DigitsCNN(nn.Module):
    """A residual network of 16 layers for images of 8×8 pixels.

    Shapes:
        ``(batch, 1, 8, 8)`` to ``(batch, 10)``.
    """

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(
            *(ResidualBlock(width, width) for _ in range(2)),
            ResidualBlock(width, 2 * width, stride=2),
            *(ResidualBlock(2 * width, 2 * width) for _ in range(4)),
        )
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of the ten classes."""
        return self.head(self.blocks(F.relu(self.stem(images))).mean((2, 3)))


def digits_cnn(batch_size: int = 32) -> Task:
    """Return the classification of scikit-learn's digits, scored by accuracy."""
    images, targets = torch.zeros(batch_size, 1, 8, 8), torch.zeros(batch_size, dtype=torch.long)
    return Task(DigitsCNN(), (images,), targets, F.cross_entropy, is_correct)


def even_stages(graph: OpGraph, depth: int) -> Placement:
    """Return a straight pipeline of ``depth`` stages with equally many weighted operators (±1).

    Operators without weights join the last one with weights before them. Where there are more
    stages than operators with weights, stages have equally many operators of any kind.
    """
    weighted = sum(operator.parameter_bytes > 0 for operator in graph.operators)
    if weighted < depth:
        even = [number * depth // len(graph) for number in range(len(graph))]
        return Placement.from_assignment(even, range(depth))
    stage_of, passed = [], 0
    for operator in graph.operators:
        passed += operator.parameter_bytes > 0
        stage_of.append(max(passed - 1, 0) * depth // weighted)
    return Placement.from_assignment(stage_of, range(depth))
