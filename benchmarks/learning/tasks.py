"""What studies of learning train: text, digits, dates and a table, with small deep models."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.deep_models import DigitsCNN, encode, sequences, spread, topics_text
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option, Task
from drlpp.models.zoo.images import is_correct
from drlpp.specs.data import Data, Samples
from drlpp.specs.data import digits as digits_data
from examples.translation import dates

_HELD_OUT = 320
_NO_PROSE = {"site-packages", "test", "tests", "encodings", "idlelib", "pydoc_data"}


def text(inputs: object = None) -> Data:
    """Return sequences of Python's documentation: the first ones of each part."""
    return _first_text(3200)


def short_text(inputs: object = None) -> Data:
    """Return half as many."""
    return _first_text(1600)


def _first_text(sequences: int) -> Data:
    train, held_out = topics_text(32)
    return Data(_first(train, sequences), _first(held_out, _HELD_OUT))


def _first(samples: Samples, count: int) -> Samples:
    return Samples(tuple(value[:count] for value in samples.inputs), samples.targets[:count])


def _documentation() -> Data:
    """Return all of Python's documentation, with some hundred of the held-out sequences."""
    train, held_out = topics_text(32)
    return Data(train, spread(held_out, _HELD_OUT))


def library(length: int) -> Data:
    """Return sequences of the source of Python's own library, without its tests.

    They are some 9 million characters of prose and code, and depend on the version of Python.
    Every tenth file is held out. Inputs and targets have the shape ``(sequences, length)``, int64.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(root.rglob("*.py"))
        if not _NO_PROSE & {*path.relative_to(root).parts}
    ]
    held_out = texts[::10]
    del texts[::10]
    train, test = (sequences(encode("".join(part)), length) for part in (texts, held_out))
    return Data(train, spread(test, _HELD_OUT))


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
class LearningTask:
    """What is learned.

    Attributes:
        title: what it is.
        model: name of its factory.
        load: samples to train on, and held-out ones.
        minibatches: of a run.
        batch_size: samples of a minibatch.
        options: of the model, whose minibatches are of ``batch_size`` by default.
    """

    title: str
    model: str
    load: Callable[[], Data]
    minibatches: int
    batch_size: int = 32
    options: dict[str, Option] = field(default_factory=dict)

    @property
    def reference(self) -> ModelReference:
        """The model."""
        return ModelReference.named(self.model, **self.options)


_CNN = "benchmarks.deep_models:digits_cnn"
_DECODER = "benchmarks.deep_models:decoder"
_HERE = "benchmarks.learning.tasks"

TASKS = {
    "digits": LearningTask("CNN of 25 thousand weights, digits", _CNN, digits, 400),
    "text": LearningTask("Decoder of 0.3 million weights, text", _DECODER, _documentation, 200, 16),
    "library": LearningTask(
        "Decoder of 0.3 million weights, text", _DECODER, partial(library, 32), 400, 16
    ),
    "library-large": LearningTask(
        "Decoder of 2.8 million weights, text",
        _DECODER,
        partial(library, 64),
        200,
        16,
        {"width": 192, "length": 64},
    ),
    # To the loss that plain PyTorch has after three epochs.
    "race-decoder": LearningTask("Decoder on text", _DECODER, text, 600, 16),
    "race-cnn": LearningTask("Residual CNN on digits", f"{_HERE}:cnn", digits, 132),
    "race-dates": LearningTask(
        "Translator of dates", "examples.translation:translator", date_sentences, 300
    ),
    "race-mlp": LearningTask("Perceptron on a table", f"{_HERE}:mlp", table, 42),
}
