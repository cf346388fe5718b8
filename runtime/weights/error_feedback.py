"""Making up in the update for gradients that are one update late (PipeDream-2BW)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from drlpp.runtime.weights.displacements import PolicyState


class ErrorFeedback:
    """Turns the optimizer's step into W_{t+1} = W_t − lr·(2·u_t − u_{t−1}).

    lr·u_t is that step, which would have been made one update earlier if gradients were not late.
    So e_t = u_t − u_{t−1} is what that update lacked. The first update of a run is not late and
    has no error, nor has the first one of a weight that had no gradient before.

    Args:
        weights: the parameters of ``optimizer``.
        optimizer: makes the steps.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        self._weights = weights
        self._optimizer = optimizer
        self.forget()

    def forget(self) -> None:
        """Note that a run begins with an empty pipeline."""
        self._directions: list[Tensor | None] = [None for _ in self._weights]

    @torch.no_grad()
    def correct_(self, before: Sequence[Tensor]) -> None:
        """Correct the step that the optimizer has just made from ``before``."""
        rate = float(self._optimizer.param_groups[0]["lr"])
        for index, (weight, old) in enumerate(zip(self._weights, before, strict=True)):
            # Without a rate there was no step, and no direction of one.
            if weight.grad is None or rate == 0:
                continue
            direction = weight.sub(old).div_(-rate)
            last = self._directions[index]
            if last is not None:
                weight.add_(last.sub_(direction), alpha=rate)
            self._directions[index] = direction

    def state(self) -> PolicyState:
        """Return u_{t−1} of every weight."""
        return [{} if u is None else {"direction": u} for u in self._directions]

    def load_state(self, state: PolicyState) -> None:
        """Take over what :meth:`state` gave."""
        self._directions = [
            known["direction"].clone() if "direction" in known else None for known in state
        ]
