"""Means over held-out samples whose number is no multiple of a minibatch.

The last samples are filled up to a whole minibatch with copies of one of them. A minibatch of
nothing but that sample follows, so that what the copies added to the loss can be taken off again::

    samples 0 1 2 | 3 4       minibatches 0 1 2 | 3 4 3 | 3 3 3
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def evaluation_order(samples: int, batch_size: int) -> Tensor:
    """Return the indices of all samples in whole minibatches, (minibatches, batch size)."""
    whole, rest = divmod(samples, batch_size)
    indices = torch.arange(samples)
    if rest:
        first = indices[whole * batch_size]
        indices = torch.cat([indices, first.repeat(2 * batch_size - rest)])
    return indices.view(-1, batch_size)


def mean_loss(losses: Sequence[float], samples: int, batch_size: int) -> float:
    """Return the mean over samples, from the loss of every minibatch of :func:`evaluation_order`.

    With the mean loss L of the minibatch that was filled up, l of the sample that fills it, and r
    samples in it, these add B·L − (B − r)·l. Exact where a loss is a mean over samples.
    """
    whole, rest = divmod(samples, batch_size)
    total = batch_size * sum(losses[:whole])
    if rest:
        total += batch_size * losses[whole] - (batch_size - rest) * losses[whole + 1]
    return total / samples


def mean_score(scores: Sequence[Tensor], samples: int) -> float:
    """Return the mean over samples, from their scores in :func:`evaluation_order`'s minibatches."""
    return torch.cat(list(scores))[:samples].float().mean().item()
