"""A check that a loss is no sum over the samples of a minibatch.

Gradients of microbatches, replicas and accumulated minibatches are averaged. That is right for a
mean over samples. Of a sum, M parts would leave 1/M of what plain PyTorch's backward gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from drlpp.capturing.module_check import call_purely, evaluating, tolerance
from drlpp.errors import InvalidModel
from drlpp.models.task import Task
from drlpp.specs.batches import Batch, chosen

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel

Loss = Callable[[Any, Batch], Tensor]


def check_no_sum(captured: CapturedModel, loss: Loss) -> None:
    """Compare the loss of the example minibatch with those of its two parts.

    The parts are its halves, and if these look like a sum, a third and the rest too: the logarithm
    of 4, a loss that compares samples with each other, is by chance twice that of 2.

    Args:
        captured: the model; nothing of it is changed.
        loss: the task's or the module's own, in Python.

    Raises:
        InvalidModel: it is a sum. A loss that cannot be computed of a part is let pass.
    """
    task = captured.task
    size = task.batch_size
    if size < 2 or any(weight.is_meta for weight in task.module.parameters()):
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            cuts = (size // 2, max(size // 3, 1))
            summed = all(_is_sum(*_losses(task, loss, at)) for at in cuts)
    except Exception:
        # Model or loss is for minibatches of this size alone.
        return
    if summed:
        raise InvalidModel(
            f"the loss of {captured.reference} is a sum over samples: that of its example "
            "minibatch is the sum of those of its parts. It has to be a mean, since the gradients "
            "of microbatches, replicas and accumulated minibatches are averaged; give it "
            'reduction="mean", or divide it by the number of samples that it is called with, not '
            "by a constant. Gradients are then smaller by that factor, so SGD's learning rate has "
            "to be larger"
        )


def _losses(task: Task, loss: Loss, at: int) -> list[Tensor]:
    """Return the losses of the minibatch, of its first ``at`` samples, and of the others."""
    parts = slice(None), slice(at), slice(at, None)
    outputs = call_purely(task.module, task.inputs)
    if all(_is_of_samples(leaf, task.batch_size) for leaf in pytree.tree_leaves(outputs)):

        def of(samples: slice) -> Tensor:
            return loss(chosen(outputs, samples), chosen(task.targets, samples))

        return [of(part) for part in parts]

    def computed(samples: slice) -> Tensor:
        given = call_purely(task.module, chosen(task.inputs, samples))
        return loss(given, chosen(task.targets, samples))

    # Such as a loss of the module's own. In training a sample's part of it may depend on the
    # others, by dropout and statistics of the batch.
    with evaluating(task.module):
        return [computed(part) for part in parts]


def _is_of_samples(value: Any, batch_size: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == batch_size


def _is_sum(whole: Tensor, first: Tensor, second: Tensor) -> bool:
    """Return whether a loss is the sum of its parts' and no mean of them, whatever their weights.

    A mean over the tokens that count lies between the parts' means, at one of them if all tokens
    are there.
    """
    total, one, other = (value.double().item() for value in (whole, first, second))
    larger, rounding = max(abs(one), abs(other)), tolerance(whole)
    if larger <= torch.finfo(whole.dtype).eps:
        return False
    beyond = max(total - max(one, other), min(one, other) - total)
    return abs(total - one - other) <= rounding * larger and beyond > _CLEARLY * rounding * larger


_CLEARLY = 4
"""How many times rounding a sum has to be away from the nearest mean."""
