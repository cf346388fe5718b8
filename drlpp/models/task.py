"""A task: the model that a user brings, with example inputs."""

from __future__ import annotations

from collections import Counter
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

    def __call__(self, outputs: Any, _: Batch = None) -> Tensor:
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
    targets = with_plain_containers(task.targets)
    _check_examples(inputs, targets, what)
    loss, score = task.loss, task.score
    if isinstance(loss, type):
        name = loss.__name__
        raise InvalidModel(f"{what}: its loss is the class {name}; an instance is one: {name}()")
    if targets is None:
        loss, score = loss and OfOutputs(loss), score and OfOutputs(score)
    _check_devices(task.module, (inputs, targets), what)
    return Task(uncompiled(task.module), inputs, targets, loss, score)


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module of which ``torch.compile`` made another one; workers compile stages."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else module


def _check_examples(inputs: Batch, targets: Batch | None, what: str) -> None:
    """Check that examples are tensors with one batch size."""
    sizes: dict[str, int] = {}
    examples = {"inputs": inputs} if targets is None else {"inputs": inputs, "targets": targets}
    for kind, batch in examples.items():
        named = dict(named_tensors(kind, batch)) or {kind: batch}
        for name, value in named.items():
            if not isinstance(value, Tensor) or not value.dim() or not len(value):
                shown = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
                raise InvalidModel(
                    f"{what}: example {kind} must be tensors with the batch as first dimension, "
                    f"but {name} is {shown}; what is the same in every call, let the module set"
                )
            sizes[name] = len(value)
    counts = Counter(sizes.values())
    if len(counts) > 1:
        odd = min(sizes, key=lambda name: counts[sizes[name]])
        listed = ", ".join(f"{size} of {name}" for name, size in sizes.items())
        raise InvalidModel(
            f"{what}: examples have batch sizes {listed}, not one; if all samples share {odd}, it "
            "is no input: keep it in the module (register_buffer), or expand it to the batch"
        )


def _check_devices(module: nn.Module, examples: Batch, what: str) -> None:
    for value in (*module.parameters(), *module.buffers(), *tensors_in(examples)):
        if isinstance(value, Tensor) and value.device.type not in _DEVICES:
            raise InvalidModel(
                f"{what}: its weights or examples are on {value.device}; leave them on the CPU "
                "(module.cpu()), workers move their stages to devices of their own"
            )
