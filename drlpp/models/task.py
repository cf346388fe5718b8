"""A task: the model that a user brings, with example inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from drlpp.errors import InvalidModel
from drlpp.specs.batches import (
    Batch,
    named_tensors,
    tensors_in,
    with_plain_containers,
)

Option = bool | int | float | str
"""Argument of a model's factory."""

_DEVICES = ("cpu", "meta")
"""That a model may be on: weights on ``meta`` are to be looked at only."""


class Task(NamedTuple):
    """What a model factory returns. Only the first two are needed to measure placements.

    Attributes:
        module: the model, in training mode.
        inputs: example inputs of one minibatch: a tuple of positional arguments, or a dictionary
            of keyword arguments. Each is a tensor, or tuples, lists and dictionaries of tensors;
            the batch is the first dimension of every tensor.
        targets: example targets of one minibatch, batch first: a tensor, or a structure as above.
            None where the model takes them among its inputs.
        loss: ``loss(outputs, targets)`` gives a scalar tensor, the mean over the minibatch;
            without targets it is ``loss(outputs)``. By default the loss that the model returns, if
            it does: as the attribute or key ``loss``, as the first of a tuple, or alone, a single
            number. Otherwise the mean square of the outputs stands in, so that a placement can be
            measured; a model cannot be trained that way.
        score: ``score(outputs, targets)``, or ``score(outputs)``, gives one number for each
            sample, such as whether it is classified correctly; evaluation reports the mean.
            Optional.
    """

    module: nn.Module
    inputs: Batch
    targets: Batch | None = None
    loss: Callable[..., Tensor] | None = None
    score: Callable[..., Tensor] | None = None

    @property
    def batch_size(self) -> int:
        """The number of samples in a minibatch."""
        return tensors_in(self.inputs)[0].shape[0]


@dataclass(frozen=True)
class OfOutputs:
    """A loss or a score that takes the model's outputs alone, in the form that takes targets."""

    function: Callable[[Any], Tensor]

    def __call__(self, outputs: Any, _: Batch) -> Tensor:
        """Return what the function gives for the outputs."""
        return self.function(outputs)


def checked_task(result: object, what: str) -> Task:
    """Return what a factory returned, or a user gave, as a task.

    Args:
        result: a task, or a tuple with the same first elements.
        what: how errors begin, such as ``model perceptron``.

    Raises:
        InvalidModel: it is none.
    """
    wanted = "expected (module, inputs) or (module, inputs, targets, loss[, score])"
    if not isinstance(result, tuple) or not 2 <= len(result) <= 5:
        raise InvalidModel(f"{what}: its factory returned {type(result).__name__}; {wanted}")
    task = Task(*result)
    if not isinstance(task.module, nn.Module):
        raise InvalidModel(
            f"{what}: the first element is a {type(task.module).__name__}, "
            "expected a torch.nn.Module"
        )
    if callable(task.targets):
        raise InvalidModel(
            f"{what}: its targets are a function; the order is (module, inputs, targets, loss)"
        )
    inputs = (task.inputs,) if isinstance(task.inputs, Tensor) else task.inputs
    if not isinstance(inputs, tuple | list | Mapping):
        raise InvalidModel(f"{what}: example inputs are {type(inputs).__name__}, expected tensors")
    inputs = with_plain_containers(inputs)
    inputs = tuple(inputs) if isinstance(inputs, list) else inputs
    size = _batch_size(inputs, what)
    targets = with_plain_containers(task.targets)
    loss, score = task.loss, task.score
    for kind, function in (("loss", loss), ("score", score)):
        if isinstance(function, type):
            raise InvalidModel(
                f"{what}: its {kind} is the class {function.__name__}, expected a function; an "
                f"instance is one: {function.__name__}()"
            )
    if targets is not None:
        _check_targets(targets, size, what)
    else:
        loss = loss and _of_outputs(loss, "loss", what)
        score = score and _of_outputs(score, "score", what)
    _check_devices(task.module, (inputs, targets), what)
    return Task(uncompiled(task.module), inputs, targets, loss, score)


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module of which ``torch.compile`` made another one; workers compile stages."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else module


def _batch_size(inputs: Batch, what: str) -> int:
    """Return the number of samples of example inputs, checked."""
    named = dict(named_tensors("inputs", inputs))
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise InvalidModel(
                f"{what}: example inputs must be tensors, but {name} is {value!r}; what is the "
                "same in every call, let the module's forward set"
            )
    if not named or not all(value.dim() and len(value) for value in named.values()):
        raise InvalidModel(
            f"{what}: example inputs must be tensors with the batch as first dimension, of at "
            "least one sample"
        )
    sizes = [len(value) for value in named.values()]
    if len(set(sizes)) > 1:
        shared = min(named, key=lambda name: sizes.count(len(named[name])))
        raise InvalidModel(
            f"{what}: example inputs have batch sizes {sizes}, not one; if all samples share "
            f"{shared}, it is no input: keep it in the module (register_buffer), or expand it to "
            "the batch"
        )
    return sizes[0]


def _check_targets(targets: Batch, size: int, what: str) -> None:
    named = dict(named_tensors("targets", targets))
    for value in named.values():
        if not isinstance(value, Tensor) or not value.dim() or len(value) != size:
            shown = str(tuple(value.shape)) if isinstance(value, Tensor) else repr(value)
            raise InvalidModel(
                f"{what}: example targets are {shown}, expected a tensor with the batch size "
                f"{size} as first dimension"
            )
    if not named:
        raise InvalidModel(f"{what}: example targets are {targets!r}, without any tensor")


def _check_devices(module: nn.Module, examples: Batch, what: str) -> None:
    for value in (*module.parameters(), *module.buffers(), *tensors_in(examples)):
        if isinstance(value, Tensor) and value.device.type not in _DEVICES:
            raise InvalidModel(
                f"{what}: its weights or examples are on {value.device}; leave them on the CPU "
                "(module.cpu()), workers move their stages to devices of their own"
            )


def _of_outputs(function: Callable[..., Tensor], kind: str, what: str) -> OfOutputs:
    if isinstance(function, OfOutputs):
        return function
    try:
        inspect.signature(function).bind(None)
    except ValueError:
        # One that does not say what it takes.
        pass
    except TypeError as error:
        raise InvalidModel(
            f"{what} has a {kind} but no targets, so it would be called with the outputs alone "
            f"({error}); return example targets of one minibatch as well"
        ) from None
    return OfOutputs(function)
