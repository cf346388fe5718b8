"""A task: the model that a user brings, with example inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

Option = bool | int | float | str
"""Argument of a model's factory."""


class Task(NamedTuple):
    """What a model factory returns. Only the first two are needed to measure placements.

    Attributes:
        module: the model, in training mode.
        inputs: example inputs of one minibatch, as positional arguments; the batch is the first
            dimension of each.
        targets: example targets of one minibatch, batch first.
        loss: ``loss(outputs, targets)`` gives a scalar tensor, the mean over the minibatch.
            Without it the mean square of the outputs stands in, so that a placement can be
            measured; a model cannot be trained that way.
        score: ``score(outputs, targets)`` gives one number for each sample, such as whether it
            is classified correctly; evaluation reports the mean. Optional.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    targets: Tensor | None = None
    loss: Callable[[Any, Tensor], Tensor] | None = None
    score: Callable[[Any, Tensor], Tensor] | None = None

    @property
    def batch_size(self) -> int:
        """The number of samples in a minibatch."""
        return self.inputs[0].shape[0]
