"""Values in the data that are infinite or not numbers, to be told when a loss is so too.

A model may mask such values, so they are no error by themselves. They are looked for in the
controller's process, and of loaders only until some have been found.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from drlpp.specs import batches
from drlpp.specs.data import Samples

_KINDS = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64}
_KINDS |= {torch.complex128}


class Watch:
    """Looks at samples as they pass, and keeps the first bad values of every tensor."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def see(self, samples: Samples, where: str = "") -> None:
        """Look at samples; ``where`` says which they are, behind the name of a tensor."""
        for name, tensor in named_tensors(samples):
            if name not in self._found and not is_finite(tensor):
                self._found[name] = _text(name, tensor, where)

    @property
    def text(self) -> str | None:
        """What was found, None if there is nothing."""
        return ", ".join(self._found.values()) or None


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


def _text(name: str, tensor: Tensor, where: str) -> str:
    bad = ~tensor.isfinite()
    sample = int(bad.nonzero()[0][0])
    return (
        f"{int(bad.sum())} of {tensor.numel()} values of {name}{where} are not finite, the first "
        f"{tensor[bad][0].item()}, of sample {sample} (counted from 0)"
    )
