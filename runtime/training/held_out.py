"""Held-out samples: the minibatches that they come in, and means over them alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeldOutCount:
    """How many held-out samples there are, in which minibatches they come, and means over them.

    The last samples are filled up to a minibatch with copies of one of them. A minibatch of nothing
    but that sample follows, so that what the copies added to the loss can be taken off again::

        samples 0 1 2 | 3 4       minibatches 0 1 2 | 3 4 3 | 3 3 3

    """

    samples: int
    batch_size: int

    @property
    def order(self) -> Tensor:
        """The indices of all samples in whole minibatches, (minibatches, batch size)."""
        indices = torch.arange(self.samples)
        if rest := self.samples % self.batch_size:
            copies = indices[-rest].repeat(2 * self.batch_size - rest)
            indices = torch.cat([indices, copies])
        return indices.view(-1, self.batch_size)

    @property
    def minibatches(self) -> int:
        """Minibatches of an evaluation, copies included."""
        whole, rest = divmod(self.samples, self.batch_size)
        return whole + 2 * bool(rest)

    def mean_loss(self, losses: Sequence[float]) -> float:
        """Return the mean over samples, from the loss of every minibatch.

        With the mean loss L of the minibatch that was filled up, l of the sample that fills it, and
        r samples in it, these add B·L − (B − r)·l. Exact where a loss is a mean over samples.
        """
        size, rest = self.batch_size, self.samples % self.batch_size
        if not rest:
            return size * sum(losses) / self.samples
        *whole, filled, alone = losses
        return (size * sum(whole) + (size * filled - (size - rest) * alone)) / self.samples

    def mean_score(self, scores: Sequence[Tensor]) -> float:
        """Return the mean over samples, from the scores in every minibatch."""
        counted = list(scores)
        if rest := self.samples % self.batch_size:
            counted[-2:] = [counted[-2][:rest]]
        return torch.cat(counted).float().mean().item()
