"""Which data a model can be trained on by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from drlpp.errors import InvalidInput
from drlpp.specs.batches import Batch
from drlpp.specs.data import fitting_data, load_data

OWN = "package.module:factory"
IMAGES, CLASSES = torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        ((torch.zeros(4, 10),), CLASSES),
        ((IMAGES, IMAGES), CLASSES),
        ((IMAGES,), torch.zeros(4, 10)),
        ((IMAGES,), torch.empty(4, 0)),
    ],
)
def test_models_of_other_kinds_need_data_of_their_own(
    inputs: tuple[Tensor, ...], targets: Tensor
) -> None:
    assert fitting_data(inputs, targets) == OWN


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("nothing", "its factory returned NoneType; called with"),
        ("one_pair", "its factory returned tuple; called with .* the second held out"),
        ("broken", "its factory raised KeyError: 'no such split'; called with"),
        ("exits", "its factory raised SystemExit: 3; called with"),
    ],
)
def test_a_factory_that_gives_no_data_is_told_what_it_gave(factory: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        load_data(f"{__name__}:{factory}", (IMAGES,), CLASSES)


def nothing(_: Batch) -> None:
    """As of a function whose return was forgotten."""


def one_pair(_: Batch) -> tuple[Tensor, Tensor]:
    """Samples to train on alone, without held-out ones."""
    return IMAGES, CLASSES


def broken(_: Batch) -> None:
    """Raise what a user's mistake raises."""
    raise KeyError("no such split")


def exits(_: Batch) -> None:
    """End the program, as a script does that finds no data."""
    raise SystemExit(3)
