"""The losses of a run, read from the device when somebody wants them."""

from __future__ import annotations

import math
from itertools import islice

import torch
from torch import Tensor

from drlpp.schedule.actions import MicrobatchId

_MOST_ON_DEVICE = 64


class Losses:
    """Collects the loss of every part without waiting for the device that computes it.

    Attributes:
        not_finite: the first that was read which is infinite or not a number, and its part. A
            processor's losses are read at once, a GPU's some time later.
    """

    def __init__(self) -> None:
        self.not_finite: tuple[MicrobatchId, float] | None = None
        self._known: dict[MicrobatchId, float] = {}
        self._pending: dict[MicrobatchId, Tensor] = {}
        self._told = 0

    def add(self, part: MicrobatchId, loss: Tensor) -> None:
        """Note a loss, a single number."""
        if loss.device.type == "cpu":
            self._note(part, loss.item())
            return
        self._pending[part] = loss.detach()
        if len(self._pending) >= _MOST_ON_DEVICE:
            self._read()

    def new(self) -> dict[MicrobatchId, float]:
        """Return the losses that were noted since the last time."""
        self._read()
        found = dict(islice(self._known.items(), self._told, None))
        self._told = len(self._known)
        return found

    def take(self) -> dict[MicrobatchId, float]:
        """Return all losses; from now on others are collected."""
        self._read()
        taken, self._known = self._known, {}
        self.not_finite, self._told = None, 0
        return taken

    def _read(self) -> None:
        if self._pending:
            values = torch.stack(list(self._pending.values())).tolist()
            for part, value in zip(self._pending, values, strict=True):
                self._note(part, value)
            self._pending.clear()

    def _note(self, part: MicrobatchId, value: float) -> None:
        self._known[part] = value
        if self.not_finite is None and not math.isfinite(value):
            self.not_finite = part, value
