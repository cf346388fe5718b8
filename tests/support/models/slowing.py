"""A model that counts its samples, of twelve equal layers, and workers that a signal slows down.

Workers import nothing of a test but its optimizer, so that is what listens.
"""

from __future__ import annotations

import signal
from typing import Any

import torch

from drlpp.models.task import Task
from drlpp.runtime.device.emulation import EmulatedAccelerator
from tests.support.models.counting import counting

SLOW, FAST = signal.SIGUSR1, signal.SIGUSR2
"""To a worker: that emulates an accelerator, which is three times as slow from now on, or no more.
"""


class SlowedSGD(torch.optim.SGD):
    """SGD in a worker that listens."""

    def __init__(self, params: Any, lr: float = 1.0) -> None:
        super().__init__(params, lr)
        signal.signal(SLOW, lambda *_: _compute_as_long(3.0))
        signal.signal(FAST, lambda *_: _compute_as_long(1.0))


def _compute_as_long(factor: float) -> None:
    def begin(self: EmulatedAccelerator) -> None:
        self.__dict__.setdefault("_usual", self._speed)
        self._speed = self.__dict__["_usual"] / factor
        _BEGIN(self)

    EmulatedAccelerator.begin = begin  # type: ignore[method-assign]


_BEGIN = EmulatedAccelerator.begin


def slow_counting() -> Task:
    """Twelve layers, which take long enough to tell how long."""
    return counting(layers=12, width=64)
