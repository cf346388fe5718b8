"""The models of the papers, and a decoder, built from their public definitions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from drlpp.errors import InvalidModel
from drlpp.models.task import Option, Task
from drlpp.models.zoo import images, inceptions, language, recurrent

_FACTORIES: tuple[Callable[..., Task], ...] = (
    images.alexnet,
    images.vgg16,
    images.resnet50,
    images.resnet101,
    images.resnet152,
    images.resnext50,
    images.resnext101,
    inceptions.googlenet,
    inceptions.inception_v3,
    recurrent.residual_lstm,
    recurrent.gnmt4,
    recurrent.gnmt8,
    recurrent.gnmt16,
    recurrent.awd_lm,
    recurrent.s2vt,
    language.gpt2,
)

ZOO: dict[str, Callable[..., Task]] = {factory.__name__: factory for factory in _FACTORIES}
"""Factories by name; their defaults are the published sizes."""

_Options = dict[str, Option]
_IMAGES: _Options = {"batch_size": 32, "input_size": 32, "classes": 10, "width": 0.25}
_TOKENS: _Options = {"batch_size": 32, "sequence_length": 20, "vocabulary": 1000}
_FRAMES: _Options = {"batch_size": 32, "frames": 15, "words": 5, "vocabulary": 1000}

SMALL: dict[str, _Options] = {
    "alexnet": _IMAGES | {"input_size": 64, "width": 0.5},
    "vgg16": _IMAGES,
    "resnet50": _IMAGES,
    "resnet101": _IMAGES | {"width": 0.125},
    "resnet152": _IMAGES | {"width": 0.125},
    "resnext50": _IMAGES,
    "resnext101": _IMAGES | {"batch_size": 16, "width": 0.125},
    "googlenet": _IMAGES,
    "inception_v3": _IMAGES | {"batch_size": 16, "input_size": 75, "width": 0.125},
    "residual_lstm": _TOKENS | {"hidden": 64, "cells": 128},
    "gnmt4": _TOKENS | {"hidden": 64},
    "gnmt8": _TOKENS | {"hidden": 64},
    "gnmt16": _TOKENS | {"hidden": 64},
    "awd_lm": _TOKENS | {"embedding": 64, "hidden": 128},
    "s2vt": _FRAMES | {"features": 256, "embedding": 64, "hidden": 128},
    "gpt2": {
        "batch_size": 16,
        "sequence_length": 32,
        "vocabulary": 1000,
        "hidden": 64,
        "layers": 6,
        "heads": 4,
        "positions": 32,
    },
}
"""Options that make a minibatch take some tens of milliseconds on one core of a CPU."""

_MOST = {"layers": 1000, "sequence_length": 10_000, "frames": 10_000, "words": 10_000}
"""What a factory or its capture repeats takes time and memory, however small each part is."""


def check_size(factory: Callable[..., Task], options: Mapping[str, Option]) -> None:
    """Build the model without memory, and count what it would take, before any is allocated.

    Options may come from a file. Where memory is only promised, as on most systems, a model that is
    too large would not fail but make the machine stop other programs.

    Raises:
        InvalidModel: weights, buffers and examples are more than this machine's memory.
        Exception: what the factory itself raises.
    """
    for name, most in _MOST.items():
        value = options.get(name)
        if isinstance(value, int | float) and value > most:
            raise InvalidModel(f"model {factory.__name__}: {name} is {value}; {most} is the most")
    with torch.device("meta"):
        task = factory(**options)
    tensors: list[Any] = [*task.module.parameters(), *task.module.buffers(), *task.inputs]
    if task.targets is not None:
        tensors.append(task.targets)
    needed = sum(tensor.nbytes for tensor in tensors)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise InvalidModel(
            f"model {factory.__name__}: with these options its weights and one minibatch take "
            f"{needed / 1e9:,.1f} GB, more than the {available / 1e9:,.1f} GB of this machine"
        )
