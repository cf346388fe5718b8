"""Collecting the gradients of an update: from one backward, or from several."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class SingleGradients:
    """One backward gives the whole gradient of an update; nothing is copied."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Take the gradients of the only contribution."""
        for weight, gradient in zip(self._weights, gradients, strict=True):
            if gradient is not None and gradient.stride() != weight.stride():
                # Fused optimizers walk through both as flat memory.
                gradient = torch.empty_like(weight).copy_(gradient)
            weight.grad = gradient

    def flat(self) -> list[Tensor]:
        """Nothing is shared with other replicas."""
        return []

    def hand_over(self, contributions: int) -> None:
        """The gradients are where the optimizer expects them already."""


class SharedGradients:
    """Sums over microbatches and replicas, in one flat tensor for each element type.

    Gradients are copied, not kept: autograd may return one tensor for two weights, or one that is
    being sent to another stage. A weight that no contribution has a gradient for gets none, so
    that the optimizer leaves it alone; which weights these are is the same on all replicas.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._flat = [
            torch.zeros(sum(w.numel() for w in weights if w.dtype == dtype), dtype=dtype)
            for dtype in dict.fromkeys(w.dtype for w in weights)
        ]
        offsets = {flat.dtype: 0 for flat in self._flat}
        flat_of = {flat.dtype: flat for flat in self._flat}
        self._parts: list[Tensor] = []
        for weight in weights:
            start = offsets[weight.dtype]
            offsets[weight.dtype] = start + weight.numel()
            part = flat_of[weight.dtype][start : start + weight.numel()]
            self._parts.append(part.view(weight.shape))
        self._empty = True
        self._reached = [True] * len(weights)

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add one contribution."""
        reached = [gradient is not None for gradient in gradients]
        before = [False] * len(reached) if self._empty else self._reached
        self._reached = [one or other for one, other in zip(reached, before, strict=True)]
        for part, gradient in zip(self._parts, gradients, strict=True):
            if gradient is None:
                if self._empty:
                    part.zero_()
            elif self._empty:
                part.copy_(gradient)
            else:
                part.add_(gradient)
        self._empty = False

    def flat(self) -> list[Tensor]:
        """The sums so far as real numbers, to be all-reduced in place; zeros without any."""
        if self._empty:
            for flat in self._flat:
                flat.zero_()
        return [torch.view_as_real(flat) if flat.is_complex() else flat for flat in self._flat]

    def hand_over(self, contributions: int) -> None:
        """Give the optimizer the mean of ``contributions`` gradients and begin anew."""
        for flat in self._flat:
            flat.div_(contributions)
        for weight, part, reached in zip(self._weights, self._parts, self._reached, strict=True):
            weight.grad = part if reached else None
        self._empty = True
