"""The models of the papers, and a decoder, built from their public definitions.

Options of one name mean the same everywhere: ``batch_size`` samples in a minibatch; for images
``input_size``, their height and width, and ``width``, a factor on the channels of every layer; for
language ``sequence_length`` tokens of ``vocabulary`` kinds, ``hidden`` units of ``layers`` layers,
and ``dropout``, a probability.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from drlpp.models.task import Option, Task
from drlpp.models.zoo import images, language, recurrent

_resnext = partial(images.resnet, groups=32)

ZOO: dict[str, Callable[..., Task]] = {
    "alexnet": images.alexnet,
    "vgg16": images.vgg16,
    "resnet50": images.resnet,
    "resnet101": partial(images.resnet, blocks=(3, 4, 23, 3)),
    "resnet152": partial(images.resnet, blocks=(3, 8, 36, 3)),
    "resnext50": partial(_resnext, group_width=4),
    "resnext101": partial(_resnext, blocks=(3, 4, 23, 3), group_width=8),
    "residual_lstm": recurrent.residual_lstm,
    "gnmt4": partial(recurrent.gnmt, batch_size=128, vocabulary=32_000, hidden=256),
    "gnmt8": recurrent.gnmt,
    "gnmt16": partial(recurrent.gnmt, layers=8),
    "awd_lm": recurrent.awd_lm,
    "s2vt": recurrent.s2vt,
    "gpt2": language.gpt2,
}
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
    "residual_lstm": _TOKENS | {"hidden": 64, "cells": 128},
    "gnmt4": _TOKENS | {"hidden": 64},
    "gnmt8": _TOKENS | {"hidden": 64},
    "gnmt16": _TOKENS | {"hidden": 64},
    "awd_lm": _TOKENS | {"embedding": 64, "hidden": 128},
    "s2vt": _FRAMES | {"features": 256, "embedding": 64, "hidden": 128},
    "gpt2": _TOKENS
    | {"batch_size": 16, "sequence_length": 32, "hidden": 64, "layers": 6, "heads": 4}
    | {"positions": 32},
}
"""Options that make a minibatch take some tens of milliseconds on one core of a CPU."""
