"""What the zoo's image classifiers have in common: their minibatches, loss and score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.errors import InvalidInput
from drlpp.models.task import Task


def classification_task(
    module: nn.Module,
    batch_size: int,
    input_size: int,
    classes: int,
    auxiliary_weight: float | None = None,
) -> Task:
    """Give ``module`` random images ``(batch size, 3, input size, input size)`` to classify.

    The loss is the cross entropy, the score whether the most likely class is the right one.

    Args:
        module: gives logits ``(batch size, classes)``.
        batch_size: images in a minibatch.
        input_size: height and width of the images.
        classes: number of classes.
        auxiliary_weight: for a module that gives a tuple of logits, those of auxiliary heads
            after the final ones: the factor on the cross entropy of each auxiliary head.
    """
    images = torch.randn(batch_size, 3, input_size, input_size)
    labels = torch.randint(classes, (batch_size,))
    if auxiliary_weight is None:
        return Task(module, (images,), labels, F.cross_entropy, is_correct)

    def loss(outputs: Sequence[Tensor], labels: Tensor) -> Tensor:
        final, *auxiliary = (F.cross_entropy(logits, labels) for logits in outputs)
        return final + auxiliary_weight * torch.stack(auxiliary).sum()

    def score(outputs: Sequence[Tensor], labels: Tensor) -> Tensor:
        return is_correct(outputs[0], labels)

    return Task(module, (images,), labels, loss, score)


def is_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for every sample whose most likely class is its label, 0 for the others.

    Args:
        logits: ``(batch, classes)``.
        labels: ``(batch,)``.

    Returns:
        ``(batch,)``.
    """
    return (logits.argmax(1) == labels).float()


def scaled(channels: int, width: float) -> int:
    """Return the number of channels of a layer in a model that is ``width`` times as wide."""
    return max(1, round(channels * width))


def check_input_size(model: str, input_size: int, smallest: int) -> None:
    """Refuse images that the model's pooling would shrink to nothing.

    Raises:
        InvalidInput: naming the smallest size.
    """
    if input_size < smallest:
        raise InvalidInput(
            f"{model}: input_size is {input_size}, but its layers need at least {smallest}"
        )
