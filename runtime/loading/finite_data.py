"""Values in the data that are infinite or not numbers: where they are, when a loss is so too.

A model may mask such values, so they are no error by themselves. They are looked for in the
controller's process, and of loaders only until some have been found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from drlpp.specs import batches
from drlpp.specs.data import Samples

_KINDS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64}
_KINDS |= {torch.complex128}


@dataclass(frozen=True)
class NotFiniteValues:
    """The values of one tensor in one minibatch that are not finite.

    Attributes:
        minibatch: which, counted from 0 since training began, or since the evaluation did.
        text: what is wrong with which sample of which tensor; it ends a sentence.
    """

    minibatch: int
    text: str


class Watch:
    """Looks at minibatches as they pass, and keeps the first bad values of every tensor."""

    def __init__(self) -> None:
        self._found: dict[str, NotFiniteValues] = {}

    def see(self, number: int, samples: Samples, indices: Tensor | None = None) -> None:
        """Look at a minibatch.

        Args:
            number: of the minibatch; of several with the same bad tensor the first counts.
            samples: of it.
            indices: of the samples in all data, (batch size,); None where only their place in the
                minibatch is known.
        """
        for name, tensor in named_tensors(samples):
            if name not in self._found and not is_finite(tensor):
                self._found[name] = NotFiniteValues(number, _text(name, tensor, indices))

    def found(self, through: int | None = None) -> list[NotFiniteValues]:
        """Return the first bad values of every tensor, in the minibatches up to ``through``."""
        return [bad for bad in self._found.values() if through is None or bad.minibatch <= through]


def named_tensors(samples: Samples) -> Iterator[tuple[str, Tensor]]:
    """Yield inputs and targets by the names that a user knows them by."""
    yield from batches.named_tensors("inputs", samples.inputs)
    yield from batches.named_tensors("targets", samples.targets)


def is_finite(tensor: Tensor) -> bool:
    """Return whether all values are numbers and none is infinite."""
    if tensor.dtype not in _KINDS:
        return True
    # A sum that is finite tells so in one pass, without memory for an answer of each value.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def bad_samples(tensor: Tensor) -> Tensor:
    """Return which samples have values that are not finite, (samples,)."""
    if is_finite(tensor):
        return torch.zeros(len(tensor), dtype=torch.bool)
    return ~tensor.isfinite().flatten(1).all(1) if tensor.dim() > 1 else ~tensor.isfinite()


def _text(name: str, tensor: Tensor, indices: Tensor | None) -> str:
    bad = ~tensor.isfinite()
    sample = int(bad_samples(tensor).nonzero()[0])
    known = (
        f"of sample {int(indices[sample])}" if indices is not None else f"of its sample {sample}"
    )
    return (
        f"{int(bad.sum())} of {tensor.numel()} values of {name} are not finite, the first "
        f"{tensor[bad][0].item()}, {known} (counted from 0)"
    )
