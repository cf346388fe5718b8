"""The models of the papers, and some of today, built from their public definitions."""

from __future__ import annotations

from collections.abc import Callable

from drlpp.models.task import Option, Task
from drlpp.models.zoo.alexnet import alexnet
from drlpp.models.zoo.awd_lm import awd_lm
from drlpp.models.zoo.bert import bert48
from drlpp.models.zoo.gnmt import gnmt4, gnmt8, gnmt16
from drlpp.models.zoo.googlenet import googlenet
from drlpp.models.zoo.gpt2 import gpt2
from drlpp.models.zoo.inception import inception_v3
from drlpp.models.zoo.llama import llama
from drlpp.models.zoo.mixtral import mixtral
from drlpp.models.zoo.residual_lstm import residual_lstm
from drlpp.models.zoo.resnet import resnet50, resnet101, resnet152, resnext50, resnext101
from drlpp.models.zoo.s2vt import s2vt
from drlpp.models.zoo.t5 import t5
from drlpp.models.zoo.transformer import transformer
from drlpp.models.zoo.unet import unet
from drlpp.models.zoo.vgg import vgg16
from drlpp.models.zoo.vit import vit

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
    llama,
    mixtral,
    vit,
    t5,
    unet,
)

__all__ = [
    "ZOO",
    "SMALL",
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
    "llama",
    "mixtral",
    "vit",
    "t5",
    "unet",
]

ZOO: dict[str, Callable[..., Task]] = {factory.__name__: factory for factory in _FACTORIES}
"""Factories by name; their defaults are the published sizes."""

_SMALL_GNMT: dict[str, Option] = {
    "batch_size": 32,
    "sequence_length": 20,
    "vocabulary": 1000,
    "hidden": 64,
}

_SMALL_TEXT: dict[str, Option] = {
    "batch_size": 16,
    "sequence_length": 32,
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
    "gpt2": {**_SMALL_TEXT, "layers": 6, "heads": 4, "positions": 32},
    "llama": {**_SMALL_TEXT, "inner": 128, "layers": 6, "heads": 4, "key_heads": 2},
    "mixtral": {**_SMALL_TEXT, "inner": 64, "layers": 4, "heads": 4, "key_heads": 2, "experts": 4},
    "vit": {
        "batch_size": 32,
        "input_size": 32,
        "patch": 8,
        "classes": 10,
        "hidden": 64,
        "layers": 8,
        "heads": 4,
    },
    "t5": {**_SMALL_TEXT, "inner": 128, "layers": 3, "heads": 4, "head_size": 16},
    "unet": {"batch_size": 4, "input_size": 64, "width": 0.125},
}
"""Options that make a minibatch take some tens of milliseconds on one core of a CPU."""
