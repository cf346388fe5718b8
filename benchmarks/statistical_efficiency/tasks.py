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

from benchmarks.deep_models import VOCABULARY, digits_cnn, next_character_loss, topics_text
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.specs.data import Data, digits

BATCH_SIZE = 32
SEQUENCE_LENGTH = 32


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


def character_lstm(batch_size: int = BATCH_SIZE) -> Task:
    """Return the task of the next character of English text; its loss is in nats a character."""
    characters = torch.zeros(batch_size, SEQUENCE_LENGTH, dtype=torch.long)
    return Task(CharacterLSTM(), (characters,), characters.clone(), next_character_loss)


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
        model="benchmarks.deep_models:digits_cnn",
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
