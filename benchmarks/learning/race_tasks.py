"""Tasks of a race: a decoder on text, a CNN on digits, an encoder and decoder on dates, an MLP.

The MLP is so small that a pipeline is silly: plain PyTorch should win, and the race should say so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.deep_models import DigitsCNN, topics_text
from drlpp.models.task import Task
from drlpp.models.zoo.images import is_correct
from drlpp.specs.data import Data, Samples
from drlpp.specs.data import digits as digits_data
from examples.translation import dates


def text(inputs: object = None) -> Data:
    """Return sequences of Python's documentation: the first ones of each part."""
    return first_text(3200)


def first_text(sequences: int) -> Data:
    """Return so many sequences of 32 characters to train on, and 320 held-out ones."""
    train, held_out = topics_text(32)
    return Data(_first(train, sequences), _first(held_out, 320))


def _first(samples: Samples, count: int) -> Samples:
    return Samples(tuple(value[:count] for value in samples.inputs), samples.targets[:count])


def cnn(batch_size: int = 32, width: int = 16) -> Task:
    """Return the classification of scikit-learn's digits by a residual CNN of 16 layers."""
    images, targets = torch.zeros(batch_size, 1, 8, 8), torch.zeros(batch_size, dtype=torch.long)
    return Task(DigitsCNN(width), (images,), targets, F.cross_entropy, is_correct)


def digits(inputs: object = None) -> Data:
    """Return the digits at their own size."""
    return digits_data((torch.zeros(1, 1, 8, 8),))


def date_sentences(inputs: object = None) -> Data:
    """Return dates in words and in digits, as ``examples/translation.py`` draws them."""
    return Data(*(Samples(tuple(of.tensors[:-1]), of.tensors[-1]) for of in dates()))


def mlp(batch_size: int = 32, width: int = 32) -> Task:
    """Return a perceptron for tables of 30 columns and two classes."""
    module = nn.Sequential(
        nn.Linear(30, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )
    rows, targets = torch.zeros(batch_size, 30), torch.zeros(batch_size, dtype=torch.long)
    return Task(module, (rows,), targets, F.cross_entropy, is_correct)


def table(inputs: object = None) -> Data:
    """Return scikit-learn's table of breast cancer, each column of mean 0 and deviation 1."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    rows = torch.tensor(bunch.data, dtype=torch.float32)
    rows = (rows - rows.mean(0)) / rows.std(0)
    targets = torch.tensor(bunch.target)
    held_out = torch.arange(len(targets)) % 5 == 0
    return Data(
        Samples((rows[~held_out],), targets[~held_out]),
        Samples((rows[held_out],), targets[held_out]),
    )


@dataclass(frozen=True)
class RaceTask:
    """A task to train to the loss that plain PyTorch has after some epochs.

    Attributes:
        title: what it is.
        model, data: their names.
        rate: a learning rate to try others around.
        batch_size: samples of a minibatch.
        epoch: minibatches of one.
    """

    title: str
    model: str
    data: str
    rate: float
    batch_size: int
    epoch: int


_HERE = "benchmarks.learning.race_tasks"

TASKS = {
    "decoder": RaceTask(
        "Decoder on text",
        "benchmarks.deep_models:decoder",
        f"{_HERE}:text",
        rate=0.003,
        batch_size=16,
        epoch=200,
    ),
    "cnn": RaceTask(
        "Residual CNN on digits",
        f"{_HERE}:cnn",
        f"{_HERE}:digits",
        rate=0.003,
        batch_size=32,
        epoch=44,
    ),
    "dates": RaceTask(
        "Translator of dates",
        "examples.translation:translator",
        f"{_HERE}:date_sentences",
        rate=0.003,
        batch_size=32,
        epoch=100,
    ),
    "mlp": RaceTask(
        "Perceptron on a table",
        f"{_HERE}:mlp",
        f"{_HERE}:table",
        rate=0.003,
        batch_size=32,
        epoch=14,
    ),
}


def race_name(task: str) -> str:
    """Return the name that replays have for a task, trained to plain PyTorch's third epoch."""
    return f"race-{task}"
