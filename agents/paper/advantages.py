"""How much better than expected a reward is: what PPO's choices are judged by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drlpp.agents.paper.trajectory import Rewarded

SMALLEST_SPREAD = 0.02
"""Standard deviation of −ln(seconds) below which differences are taken for noise: 2%."""


def scaled(above: NDArray[np.float64], spread: float, bound: float) -> Tensor:
    """Return how far rewards are above a baseline in units of ``spread``, at most ``bound``."""
    return torch.from_numpy((above / spread).clip(-bound, bound).astype(np.float32))


def less_penalties(advantages: Tensor, content: Sequence[Rewarded]) -> Tensor:
    """Return the advantages of all placements with the average of the penalties taken off.

    Where nine placements in ten cannot run, pushing away from those nine is mostly noise, and
    the tenth has to stand out. Without penalties this changes nothing.
    """
    invalid = torch.tensor([rewarded.invalid for rewarded in content])
    return advantages - (advantages * invalid).mean()


class StageBaselines:
    """What placements with as many stages were rewarded with, on average and at best.

    Most random cuts are worse than none, so against one average for all, the first thing that a
    policy learns is never to cut, and then it sees no cut any more. Here a placement is compared
    with those of as many stages. The number of stages itself is rewarded by the best that each
    number has shown so far, not by its average, since the average only says how badly it was cut.

    Args:
        decay: weight of the past in the averages; 0 is the rollout's own average.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._average: dict[int, float] = {}
        self._best: dict[int, float] = {}

    def update(self, content: Sequence[Rewarded]) -> None:
        """Take the measured placements of a rollout into account; penalties stay out."""
        rewards: dict[int, list[float]] = {}
        for rewarded in content:
            if rewarded.measured:
                rewards.setdefault(rewarded.trajectory.walk.stages, []).append(rewarded.reward)
        for stages, found in rewards.items():
            average = float(np.mean(found))
            past = self._average.get(stages, average)
            self._average[stages] = self.decay * past + (1 - self.decay) * average
            self._best[stages] = max(self._best.get(stages, -np.inf), *found)

    def averages(self, stages: Sequence[int]) -> NDArray[np.float64]:
        """Return the average reward of each number of stages.

        Where nothing with as many was ever measured, it is that of all numbers.
        """
        return _looked_up(self._average, stages)

    def standings(self, stages: Sequence[int]) -> NDArray[np.float64]:
        """Return how much better the best with as many stages is than that of the others here."""
        best = _looked_up(self._best, stages)
        return best - best.mean() if len(best) else best


def _looked_up(values: dict[int, float], stages: Sequence[int]) -> NDArray[np.float64]:
    usual = float(np.mean(list(values.values()) or [0.0]))
    return np.array([values.get(count, usual) for count in stages])
