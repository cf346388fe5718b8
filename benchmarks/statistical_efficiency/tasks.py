"""What the study of statistical efficiency trains: two small tasks that can be cut into 16 stages.

Both are deep rather than wide, with residual connections, so that sixteen stages each hold weights
and still train well in some hundreds of minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.statistical_efficiency.text import VOCABULARY, topics_text
from drlpp.capturing.graph import OpGraph
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.models.zoo.classification import is_correct
from drlpp.placement.placement import Placement
from drlpp.specs.data import Data, digits

BATCH_SIZE = 32
SEQUENCE_LENGTH = 32


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


class ResidualLSTM(nn.Module):
    """An LSTM between two linear projections, added to its input.

    Shapes:
        ``(batch, length, width)`` to the same.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.Linear(width, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.after = nn.Linear(width, width)

    def forward(self, sequences: Tensor) -> Tensor:
        """Compute every position from the positions up to it."""
        hidden, _ = self.lstm(self.before(sequences))
        return sequences + self.after(hidden)


class CharacterLSTM(nn.Module):
    """A language model: five residual LSTMs, so 17 operators with weights.

    Shapes:
        ``(batch, length)`` of indices to ``(batch, length, vocabulary)``.
    """

    def __init__(self, width: int = 32, layers: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), width)
        self.layers = nn.Sequential(*(ResidualLSTM(width) for _ in range(layers)))
        self.head = nn.Linear(width, len(VOCABULARY))

    def forward(self, characters: Tensor) -> Tensor:
        """Return scores of the character that comes next, at every position."""
        return self.head(self.layers(self.embedding(characters)))


def digits_cnn(batch_size: int = BATCH_SIZE) -> Task:
    """Return the classification of scikit-learn's digits, scored by accuracy."""
    images, targets = torch.zeros(batch_size, 1, 8, 8), torch.zeros(batch_size, dtype=torch.long)
    return Task(DigitsCNN(), (images,), targets, F.cross_entropy, is_correct)


def character_lstm(batch_size: int = BATCH_SIZE) -> Task:
    """Return the task of the next character of English text; its loss is in nats a character."""
    characters = torch.zeros(batch_size, SEQUENCE_LENGTH, dtype=torch.long)
    return Task(CharacterLSTM(), (characters,), characters.clone(), _next_character_loss)


def _next_character_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


@dataclass(frozen=True)
class StudyTask:
    """A task of the study.

    Attributes:
        title: what it is, for the report.
        model: name of its factory, which takes the batch size.
        load: samples to train on and held-out ones.
        epochs: how often the training samples are seen.
        classes: how many there are to choose from.
        rates: learning rates that are searched, for every optimizer.
    """

    title: str
    model: str
    load: Callable[[], Data]
    epochs: int
    classes: int
    rates: dict[str, tuple[float, ...]]

    def reference(self, batch_size: int) -> ModelReference:
        """Return the model for minibatches of ``batch_size`` samples."""
        return ModelReference.named(self.model, batch_size=batch_size)

    @property
    def guessing_loss(self) -> float:
        """Loss of a model that finds all classes equally likely, in nats."""
        return math.log(self.classes)


TASKS = {
    "digits": StudyTask(
        title="CNN, digits, accuracy in %",
        model="benchmarks.statistical_efficiency.tasks:digits_cnn",
        load=lambda: digits(digits_cnn().inputs),
        epochs=9,
        classes=10,
        rates={
            "sgd": (0.003, 0.01, 0.03, 0.1),
            "adam": (0.0003, 0.001, 0.003, 0.01),
            "adamw": (0.0003, 0.001, 0.003, 0.01),
        },
    ),
    "text": StudyTask(
        title="Residual LSTM, text, loss in nats",
        model="benchmarks.statistical_efficiency.tasks:character_lstm",
        load=lambda: topics_text(SEQUENCE_LENGTH),
        epochs=1,
        classes=len(VOCABULARY),
        rates={
            "sgd": (0.03, 0.1, 0.3, 1.0),
            "adam": (0.001, 0.003, 0.01, 0.03),
            "adamw": (0.001, 0.003, 0.01, 0.03),
        },
    ),
}


def even_stages(graph: OpGraph, depth: int) -> Placement:
    """Return a straight pipeline of ``depth`` stages with equally many weighted operators (±1).

    Operators without weights join the last one with weights before them.
    """
    weighted = sum(operator.parameter_bytes > 0 for operator in graph.operators)
    assert weighted >= depth, "every stage needs an operator with weights"
    stage_of, passed = [], 0
    for operator in graph.operators:
        passed += operator.parameter_bytes > 0
        stage_of.append(max(passed - 1, 0) * depth // weighted)
    return Placement.from_assignment(stage_of, range(depth))
