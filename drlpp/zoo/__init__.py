"""The models of the papers, built from their public definitions."""

from __future__ import annotations

from collections.abc import Callable

from drlpp.task import Option, Task
from drlpp.zoo.alexnet import alexnet
from drlpp.zoo.gnmt import gnmt4
from drlpp.zoo.resnet import resnet50
from drlpp.zoo.vgg import vgg16

__all__ = ["ZOO", "SMALL", "alexnet", "vgg16", "resnet50", "gnmt4"]

ZOO: dict[str, Callable[..., Task]] = {
    "alexnet": alexnet,
    "vgg16": vgg16,
    "resnet50": resnet50,
    "gnmt4": gnmt4,
}
"""Factories by name; their defaults are the published sizes."""

SMALL: dict[str, dict[str, Option]] = {
    "alexnet": {"batch_size": 32, "input_size": 64, "classes": 10, "width": 0.5},
    "vgg16": {"batch_size": 32, "input_size": 32, "classes": 10, "width": 0.25},
    "resnet50": {"batch_size": 32, "input_size": 32, "classes": 10, "width": 0.25},
    "gnmt4": {"batch_size": 32, "sequence_length": 20, "vocabulary": 1000, "hidden": 64},
}
"""Options that make a minibatch take some tens of milliseconds on one core of a CPU."""
