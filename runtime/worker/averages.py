"""Averages of weights in place of sums of gradients: local SGD, and DiLoCo's outer steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

_OUTER_RATE, _MOMENTUM = 0.7, 0.9
"""Of DiLoCo's outer steps, as its paper and torchft have them."""


class Averages(PeriodicModelAverager):
    """Local SGD: every so many updates weights are averaged."""

    kept: tuple[list[Tensor], ...] = ()

    def __init__(self, weights: Sequence[Tensor], every: int) -> None:
        super().__init__(every, warmup_steps=every - 1)


class OuterSteps(Averages):
    """DiLoCo (Douillard et al., 2023): what all have gained since is a gradient of their weights.

    With it Nesterov's momentum makes one step.
    """

    def __init__(self, weights: Sequence[Tensor], every: int) -> None:
        super().__init__(weights, every)
        # Not what they hold: an average gives parameters other memory.
        self._weights = weights
        outer = [weight.detach().clone() for weight in weights]
        self.kept = outer, [torch.zeros_like(weight) for weight in outer]

    @torch.no_grad()
    def average_parameters(self, params: Any) -> None:
        """Do so if it is time."""
        due = self.step % self.period == self.warmup_steps
        super().average_parameters(params)
        if not due:
            return
        outer, momentum = self.kept
        gained = torch._foreach_sub(outer, list(self._weights))
        torch._foreach_mul_(momentum, _MOMENTUM)
        torch._foreach_add_(momentum, gained)
        torch._foreach_add_(gained, momentum, alpha=_MOMENTUM)
        torch._foreach_add_(outer, gained, alpha=-_OUTER_RATE)
        torch._foreach_copy_(list(self._weights), outer)
