"""A model that counts its samples, of twelve equal layers, and workers that a signal slows down.

Workers import nothing of a test but its optimizer, so that is what listens.
"""

from __future__ import annotations

import signal
from typing import Any

import torch
from torch import Tensor, nn

from drlpp.models.task import Task
from drlpp.runtime.device.emulation import EmulatedAccelerator
from tests.support.models.counting import BATCH_SIZE, SAMPLES

SLOW, FAST = signal.SIGUSR1, signal.SIGUSR2
"""To a worker: that emulates an accelerator, which is three times as slow from now on, or no more.
"""

_LAYERS, _WIDTH = 12, 64


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


class _Counting(nn.Module):
    """Layers that read the input alone: the gradient of each is the sum of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        layers = [
            nn.Linear(SAMPLES, _WIDTH, bias=False, dtype=torch.float64) for _ in range(_LAYERS)
        ]
        for layer in layers:
            nn.init.zeros_(layer.weight)
        self.layers = nn.ModuleList(layers)

    def forward(self, sample: Tensor) -> Tensor:
        total = self.layers[0](sample)
        for layer in self.layers[1:]:
            total = total + layer(sample)
        return total


def _sum(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum() + targets.sum()


def slow_counting() -> Task:
    """With SGD of rate 1, a weight is minus the number of times that its sample was trained on."""
    inputs = torch.zeros(BATCH_SIZE, SAMPLES, dtype=torch.float64)
    return Task(_Counting(), (inputs,), torch.zeros(BATCH_SIZE, dtype=torch.float64), _sum)
