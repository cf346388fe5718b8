"""Means over held-out samples whose number is no multiple of a minibatch.

The last samples are filled up to a whole minibatch with copies of one of them. A minibatch of
nothing but that sample follows, so that what the copies added to the loss can be taken off again::

    samples 0 1 2 | 3 4       minibatches 0 1 2 | 3 4 3 | 3 3 3

"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class HeldOutCount:
    """How many held-out samples there are.

    Attributes:
        samples: all of them, each once.
        batch_size: samples of a minibatch.
    """

    samples: int
    batch_size: int

    @property
    def _rest(self) -> int:
        """Samples that fill no minibatch."""
        return self.samples % self.batch_size

    @property
    def minibatches(self) -> int:
        """Minibatches of an evaluation, copies included."""
        return self.samples // self.batch_size + 2 * bool(self._rest)

    def mean_loss(self, losses: Sequence[float]) -> float:
        """Return the mean over samples, from the loss of every minibatch.

        With the mean loss L of the minibatch that was filled up, l of the sample that fills it, and
        r samples in it, these add B·L − (B − r)·l. Exact where a loss is a mean over samples.
        """
        size, rest = self.batch_size, self._rest
        if not rest:
            return size * sum(losses) / self.samples
        *whole, filled, alone = losses
        return (size * sum(whole) + (size * filled - (size - rest) * alone)) / self.samples

    def mean_score(self, scores: Sequence[Tensor]) -> float:
        """Return the mean over samples, from the scores in every minibatch."""
        counted = list(scores)
        if self._rest:
            counted[-2:] = [counted[-2][: self._rest]]
        return torch.cat(counted).float().mean().item()
