"""Means over held-out samples whose number is no multiple of a minibatch.

The last samples are filled up to a whole minibatch with copies of one of them. A minibatch of
nothing but that sample follows, so that what the copies added to the loss can be taken off again::

    samples 0 1 2 | 3 4       minibatches 0 1 2 | 3 4 3 | 3 3 3

Where samples come in several shapes, whole minibatches of all of them come first, and then what
each shape leaves over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        whole: minibatches without copies.
        rests: samples that are left over, of each shape that leaves any.
        batch_size: samples of a minibatch.
    """

    whole: int
    rests: tuple[int, ...]
    batch_size: int

    @classmethod
    def of(cls, samples: Iterable[int], batch_size: int) -> HeldOutCount:
        """Return the count of so many samples in every shape."""
        parts = [divmod(count, batch_size) for count in samples]
        rests = tuple(rest for _, rest in parts if rest)
        return cls(sum(whole for whole, _ in parts), rests, batch_size)

    @property
    def samples(self) -> int:
        """All of them, each once."""
        return self.whole * self.batch_size + sum(self.rests)

    @property
    def minibatches(self) -> int:
        """Minibatches of an evaluation, copies included."""
        return self.whole + 2 * len(self.rests)

    def mean_loss(self, losses: Sequence[float]) -> float:
        """Return the mean over samples, from the loss of every minibatch.

        With the mean loss L of the minibatch that was filled up, l of the sample that fills it, and
        r samples in it, these add B·L − (B − r)·l. Exact where a loss is a mean over samples.
        """
        size = self.batch_size
        total = size * sum(losses[: self.whole])
        for number, rest in enumerate(self.rests):
            filled, alone = losses[self.whole + 2 * number :][:2]
            total += size * filled - (size - rest) * alone
        return total / self.samples

    def mean_score(self, scores: Sequence[Tensor]) -> float:
        """Return the mean over samples, from the scores in every minibatch."""
        counted = list(scores[: self.whole])
        counted += [scores[self.whole + 2 * n][:rest] for n, rest in enumerate(self.rests)]
        return torch.cat(counted).float().mean().item()
