"""Hogwild-style asynchrony: gradients that arrive after random delays (pipemare, appendix E)."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from drlpp.runtime.reference.reference_weights import Weights


@dataclass(frozen=True)
class RandomDelays:
    """w_{i,t+1} = w_{i,t} − α · [∇f_{t−τ_i}(w_{t−τ_i})]_i with random τ_i (pipemare eq. 16).

    τ_i follows an exponential distribution with an expectation of the stage's own, truncated at
    the same longest delay for all stages, and rounded down to whole updates.

    Attributes:
        scales: for every stage the expectation of its exponential distribution before truncation,
            in updates; 0 for no delay.
        longest: no delay is longer, in updates.
        annealing_minibatches: K of learning-rate rescheduling (T1), with the expected delay plus
            one as τ_i; 0 leaves it out.
        seed: of the delays.
    """

    scales: Sequence[float]
    longest: int
    annealing_minibatches: int = 0
    seed: int = 0

    def rate_factor(self, stage: int, update: int) -> float:
        """Return T1's 1 / τ_i^{p_k} for update number ``update`` (pipemare eq. 4)."""
        if not self.annealing_minibatches:
            return 1.0
        power = 1 - min(update / self.annealing_minibatches, 1.0)
        return (1 + self.scales[stage]) ** -power


class DelayedGradients:
    """The gradients of a stage on their way to its weights."""

    def __init__(self, delays: RandomDelays, stage: int) -> None:
        self._delays = delays
        self._stage = stage
        self._random = random.Random(f"{delays.seed} {stage}")
        self._computed: deque[Weights] = deque(maxlen=delays.longest + 1)
        self._updates = 0

    def next(self, computed: Weights) -> tuple[Weights, float]:
        """Return the gradient that arrives when ``computed`` is sent off, and its T1 factor."""
        self._computed.append(computed)
        delay = min(self.draw(), len(self._computed) - 1)
        factor = self._delays.rate_factor(self._stage, self._updates)
        self._updates += 1
        return self._computed[-1 - delay], factor

    def draw(self) -> int:
        """Draw the next delay, between 0 and the longest."""
        scale, longest = self._delays.scales[self._stage], self._delays.longest
        if not scale or not longest:
            return 0
        # The inverse of the distribution function on what is left of it by the truncation.
        below = 1 - math.exp(-(longest + 1) / scale)
        return min(int(-scale * math.log(1 - self._random.random() * below)), longest)
