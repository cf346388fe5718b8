"""What studies of learning share: the order of samples, when a loss was reached, rates to try."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

POWERS = range(-4, 7)
"""Of two: learning rates are so many thousandths."""


def shuffled(samples: int, batch_size: int, minibatches: int, seed: int) -> Tensor:
    """Return the samples of all minibatches, shuffled anew whenever they have all been seen.

    Runs of the same seed see the same samples in the same order, however long they are.

    Shapes: ``(minibatches, batch_size)``.
    """
    generator = torch.Generator().manual_seed(seed)
    full = samples // batch_size
    epochs = -(-minibatches // full)
    orders = [
        torch.randperm(samples, generator=generator)[: full * batch_size] for _ in range(epochs)
    ]
    return torch.cat(orders).view(-1, batch_size)[:minibatches]


def minibatches_to(target: float, curve: Iterable[tuple[int, float | None]]) -> float | None:
    """Return after how many minibatches a curve of losses reaches ``target``, None if it does not.

    Between evaluations the loss is taken for a straight line; one that is not finite is None, and
    ends the curve.
    """
    before: tuple[int, float] | None = None
    for minibatch, loss in curve:
        if loss is None:
            return None
        if loss <= target:
            if before is None or before[1] <= loss:
                return minibatch
            share = (before[1] - target) / (before[1] - loss)
            return before[0] + share * (minibatch - before[0])
        before = minibatch, loss
    return None


def next_powers(losses: Mapping[int, float], first: int) -> list[int]:
    """Return the powers to try next; none if the best has worse neighbours, or the range ends."""
    if first not in losses:
        return [first]
    best = min(losses, key=losses.__getitem__)
    if math.isinf(losses[best]):
        # Nothing but smaller rates can help.
        return [min(losses) - 1] if min(losses) - 1 in POWERS else []
    return [power for power in (best - 1, best + 1) if power in POWERS and power not in losses]
