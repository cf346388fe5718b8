"""The losses of a run, read from the device when somebody wants them."""

from __future__ import annotations

import torch
from torch import Tensor

from drlpp.schedule import Part

_MOST_ON_DEVICE = 1024


class Losses:
    """Collects the loss of every part without waiting for the device that computes it."""

    def __init__(self) -> None:
        self._known: dict[Part, float] = {}
        self._pending: dict[Part, Tensor] = {}

    def add(self, part: Part, loss: Tensor) -> None:
        """Note a loss, a single number."""
        self._pending[part] = loss.detach()
        if len(self._pending) >= _MOST_ON_DEVICE:
            self._read()

    def take(self) -> dict[Part, float]:
        """All losses that were noted since the last time."""
        self._read()
        taken, self._known = self._known, {}
        return taken

    def _read(self) -> None:
        if self._pending:
            values = torch.stack(list(self._pending.values())).tolist()
            self._known.update(zip(self._pending, values, strict=True))
            self._pending.clear()
