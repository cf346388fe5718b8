"""The models of the papers, and a decoder, built from their public definitions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from drlpp.errors import InvalidModel
from drlpp.models.task import Option, Task
from drlpp.models.zoo.awd_lm import awd_lm
from drlpp.models.zoo.bert import bert48
from drlpp.models.zoo.gnmt import gnmt4, gnmt8, gnmt16
from drlpp.models.zoo.googlenet import googlenet
from drlpp.models.zoo.gpt2 import gpt2
from drlpp.models.zoo.images import (
    alexnet,
    resnet50,
    resnet101,
    resnet152,
    resnext50,
    resnext101,
    vgg16,
)
from drlpp.models.zoo.inception import inception_v3
from drlpp.models.zoo.residual_lstm import residual_lstm
from drlpp.models.zoo.s2vt import s2vt
from drlpp.models.zoo.transformer import transformer

_FACTORIES: tuple[Callable[..., Task], ...] = (
    alexnet,
    vgg16,
    resnet50,
    resnet101,
    resnet152,
    resnext50,
    resnext101,
    googlenet,
    inception_v3,
    residual_lstm,
    gnmt4,
    gnmt8,
    gnmt16,
    awd_lm,
    s2vt,
    bert48,
    transformer,
    gpt2,
)

__all__ = [
    "ZOO",
    "SMALL",
    "check_size",
    "alexnet",
    "vgg16",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50",
    "resnext101",
    "googlenet",
    "inception_v3",
    "residual_lstm",
    "gnmt4",
    "gnmt8",
    "gnmt16",
    "awd_lm",
    "s2vt",
    "bert48",
    "transformer",
    "gpt2",
]

ZOO: dict[str, Callable[..., Task]] = {factory.__name__: factory for factory in _FACTORIES}
"""Factories by name; their defaults are the published sizes."""

_SMALL_GNMT: dict[str, Option] = {
    "batch_size": 32,
    "sequence_length": 20,
    "vocabulary": 1000,
    "hidden": 64,
}

SMALL: dict[str, dict[str, Option]] = {
    "alexnet": {"batch_size": 32, "input_size": 64, "classes": 10, "width": 0.5},
    "vgg16": {"batch_size": 32, "input_size": 32, "classes": 10, "width": 0.25},
    "resnet50": {"batch_size": 32, "input_size": 32, "classes": 10, "width": 0.25},
    "resnet101": {"batch_size": 32, "input_size": 32, "classes": 10, "width": 0.125},
    "resnet152": {"batch_size": 32, "input_size": 32, "classes": 10, "width": 0.125},
    "resnext50": {"batch_size": 32, "input_size": 32, "classes": 10, "width": 0.25},
    "resnext101": {"batch_size": 16, "input_size": 32, "classes": 10, "width": 0.125},
    "googlenet": {"batch_size": 32, "input_size": 32, "classes": 10, "width": 0.25},
    "inception_v3": {"batch_size": 16, "input_size": 75, "classes": 10, "width": 0.125},
    "residual_lstm": {
        "batch_size": 32,
        "sequence_length": 20,
        "vocabulary": 1000,
        "hidden": 64,
        "cells": 128,
    },
    "gnmt4": _SMALL_GNMT,
    "gnmt8": _SMALL_GNMT,
    "gnmt16": _SMALL_GNMT,
    "awd_lm": {
        "batch_size": 32,
        "sequence_length": 20,
        "vocabulary": 1000,
        "embedding": 64,
        "hidden": 128,
    },
    "s2vt": {
        "batch_size": 32,
        "frames": 15,
        "words": 5,
        "vocabulary": 1000,
        "features": 256,
        "embedding": 64,
        "hidden": 128,
    },
    "bert48": {
        "batch_size": 8,
        "sequence_length": 16,
        "vocabulary": 1000,
        "hidden": 32,
        "heads": 4,
        "positions": 16,
    },
    "transformer": {
        "batch_size": 32,
        "sequence_length": 16,
        "source_vocabulary": 1000,
        "target_vocabulary": 1000,
        "hidden": 64,
        "inner": 128,
    },
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
