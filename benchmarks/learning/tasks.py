"""What studies of learning train: text, digits and dates, with small deep models."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from benchmarks.deep_models import encode, sequences, spread, topics_text
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option
from drlpp.specs.data import Data, Samples
from drlpp.specs.data import digits as digits_data
from examples.translation import dates

_HELD_OUT = 320
_NO_PROSE = {"site-packages", "test", "tests", "encodings", "idlelib", "pydoc_data"}


def short_text(inputs: object = None) -> Data:
    """Return the first sequences of each part of Python's documentation."""
    train, held_out = topics_text(32)
    return Data(_first(train, 1600), _first(held_out, _HELD_OUT))


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


def digits(inputs: object = None) -> Data:
    """Return the digits at their own size."""
    return digits_data((torch.zeros(1, 1, 8, 8),))


def date_sentences(inputs: object = None) -> Data:
    """Return dates in words and in digits, as ``examples/translation.py`` draws them."""
    return Data(*(Samples(tuple(of.tensors[:-1]), of.tensors[-1]) for of in dates()))


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
}
