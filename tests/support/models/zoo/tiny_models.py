"""The zoo in the smallest sizes that still have every layer of a kind, for tests."""

import pytest

from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option, Task


def task_in_float64(name: str) -> Task:
    """With batch normalisation over few values, rounding in float32 is not small."""
    task = tiny(name).build()
    inputs = tuple(x.double() if x.is_floating_point() else x for x in task.inputs)
    return task._replace(module=task.module.double(), inputs=inputs)


_IMAGES: dict[str, Option] = {"batch_size": 4, "input_size": 33, "classes": 10, "width": 0.05}
_SENTENCES: dict[str, Option] = {
    "batch_size": 4,
    "sequence_length": 5,
    "vocabulary": 11,
    "hidden": 8,
}

TINY: dict[str, dict[str, Option]] = {
    "alexnet": {**_IMAGES, "input_size": 63},
    "vgg16": _IMAGES,
    "resnet50": _IMAGES,
    "resnet101": _IMAGES,
    "resnet152": _IMAGES,
    "resnext50": _IMAGES,
    "resnext101": _IMAGES,
    "residual_lstm": {**_SENTENCES, "cells": 6, "layers": 2},
    "gnmt4": _SENTENCES,
    "gnmt8": _SENTENCES,
    "gnmt16": _SENTENCES,
    "awd_lm": {**_SENTENCES, "embedding": 6},
    "s2vt": {
        "batch_size": 4,
        "frames": 4,
        "words": 3,
        "vocabulary": 11,
        "features": 7,
        "embedding": 5,
        "hidden": 8,
    },
    "gpt2": {**_SENTENCES, "layers": 2, "heads": 2, "positions": 8},
}


def tiny(name: str, **options: Option) -> ModelReference:
    return ModelReference.named(name, **{**TINY[name], **options})


# Other depths of models that are tested anyway.
_DEEPER = ("resnet101", "resnet152", "resnext101", "gnmt8", "gnmt16")

# Graphs of the shape of others, made of the same kinds of operators.
_ALIKE = ("vgg16", "resnet50", "resnext50", "residual_lstm", "gpt2")

GRAPHS = [
    pytest.param(name, marks=pytest.mark.slow if name in (*_DEEPER, *_ALIKE) else ())
    for name in TINY
]
"""Every model of the zoo, as an argument of a test."""
