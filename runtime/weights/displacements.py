"""Moving a stage's weights away from W_t for one pass, and back: where each policy moves them.

pipeoptim, algorithm 1, lines 5 to 10: cache the weights, move them in place, pass, recover. The
policies differ in the direction only: pipeoptim eq. 6 has three ways to predict future weights,
and PipeMare's discrepancy correction (T2) looks back along the weights' recent trajectory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from drlpp.runtime.weights.update_rules import (
    adam_direction,
    has_first_moment,
    has_rule,
    last_gradient_needed,
    predict_weights_,
    smoothed_gradient,
)

PolicyState = list[dict[str, Tensor]]
"""What a policy knows about every weight of a stage in addition to its value."""


class WeightShift(ABC):
    """Moves the weights of ``optimizer`` by a number of updates, and back.

    Args:
        weights: the parameters of ``optimizer``.
        optimizer: has made the newest update.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        self.weights = list(weights)
        self.optimizer = optimizer
        self._cache: list[Tensor] = []

    @abstractmethod
    def move_(self, lead: int, rate_sum: float) -> None:
        """Write the weights ``lead`` updates ahead over W_t.

        Args:
            lead: how many updates; negative to look back.
            rate_sum: the sum of the learning rates of the next ``lead`` updates.
        """

    def displace_(self, lead: int, rate_sum: float) -> None:
        """Keep W_t, and move."""
        self._keep_weights()
        self.move_(lead, rate_sum)

    def _keep_weights(self) -> None:
        """Copy the weights as they are to the cache."""
        if not self._cache:
            self._cache = [torch.empty_like(weight) for weight in self.weights]
        torch._foreach_copy_(self._cache, self.weights)

    def recover_(self) -> None:
        """Restore W_t, bit for bit."""
        torch._foreach_copy_(self.weights, self._cache)

    @property
    def reads_last_gradient(self) -> bool:
        """Whether it needs the gradients of the newest update in ``grad``."""
        return False

    def before_update(self) -> None:
        """Prepare for the optimizer's step, when the new gradients are in ``grad``."""

    def after_update(self) -> None:
        """Note that the optimizer has made its step."""

    def after_skipped_update(self) -> None:
        """Note that the optimizer makes no step; called instead of both."""

    def copies(self) -> list[Tensor]:
        """Return tensors of the size of the weights that hold weights, other than the weights."""
        return self._cache

    def state(self) -> PolicyState:
        """Return what has to be in a checkpoint, for every weight."""
        return [{} for _ in self.weights]

    def load_state(self, state: PolicyState) -> None:
        """Take over what :meth:`state` gave."""


class OptimizerRule(WeightShift):
    """PipeOptim where the optimizer's state gives the direction of its update (Table I)."""

    def move_(self, lead: int, rate_sum: float) -> None:
        """Move to Ŵ_{t+s} = W_t − lr · s · ΔW_t (pipeoptim eq. 5), with the rates of s updates."""
        predict_weights_(self.weights, self.optimizer, rate_sum)

    @property
    def reads_last_gradient(self) -> bool:
        """Whether the rule needs the gradients of the newest update."""
        return last_gradient_needed(self.optimizer)


_PIECE = 65536


class LastStep(WeightShift):
    """Along the optimizer's last step, ΔW_t = (W_{t−1} − W_t) / lr, a decay of weights included.

    So PipeOptim predicts for optimizers without a rule, and policy ``last-step`` for all.

    W_{t−1} is kept, and its storage serves to cache W_t while the weights are moved, so that no
    more than two versions of the weights are held.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        super().__init__(weights, optimizer)
        self._ratio: float | None = None
        self._rate = 0.0

    def before_update(self) -> None:
        """Keep W_{t−1}."""
        self._keep_weights()
        self._rate = float(self.optimizer.param_groups[0]["lr"])

    def move_(self, lead: int, rate_sum: float) -> None:
        """Move to Ŵ = W_t + (W_t − W_{t−1}) · rate_sum / lr, a piece after another."""
        self._ratio = rate_sum / self._rate
        for weight, previous in self._pieces():
            moved = weight.add(weight.sub(previous), alpha=self._ratio)
            previous.copy_(weight)
            weight.copy_(moved)

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield small parts of every weight and of what is kept of it."""
        for weight, kept in zip(self.weights, self._cache, strict=True):
            # Both are contiguous, as the stage's runner makes them.
            yield from zip(weight.view(-1).split(_PIECE), kept.view(-1).split(_PIECE), strict=True)

    def displace_(self, lead: int, rate_sum: float) -> None:
        """Move, and leave W_t in the storage of W_{t−1}."""
        # Without a step so far nothing is known about the direction; and W_{t−1} could not be
        # recovered from a tiny part of the step.
        if rate_sum > 1e-4 * self._rate > 0:
            self.move_(lead, rate_sum)

    def recover_(self) -> None:
        """Restore W_t bit for bit, and W_{t−1} to rounding."""
        if self._ratio is None:
            return
        for weight, current in self._pieces():
            step = weight.sub(current)
            weight.copy_(current)
            current.sub_(step, alpha=1 / self._ratio)
        self._ratio = None

    def state(self) -> PolicyState:
        """Return W_{t−1}, and the learning rate of the step from it."""
        if not self._rate:
            return super().state()
        rate = torch.tensor(self._rate, dtype=torch.float64)
        return [{"previous": previous, "rate": rate} for previous in self._cache]

    def load_state(self, state: PolicyState) -> None:
        """Take over W_{t−1}."""
        if state and all("previous" in known for known in state):
            self._cache = [known["previous"].clone() for known in state]
            self._rate = state[0]["rate"].item()


class SmoothedGradient(WeightShift):
    """SpecTrain: along the smoothed gradients m of SGD with momentum (pipeoptim eq. 6).

    For an optimizer of another kind its own first moment is taken, or the last gradient where it
    has none, though the paper says that SpecTrain does not work with those.
    """

    def move_(self, lead: int, rate_sum: float) -> None:
        """Move to Ŵ_{t+s} = W_t − lr · s · m."""
        for weight in self.weights:
            direction = smoothed_gradient(self.optimizer, weight)
            if direction is not None:
                weight.sub_(direction, alpha=rate_sum)

    @property
    def reads_last_gradient(self) -> bool:
        """Whether the optimizer has no first moment, or keeps it where nobody knows."""
        return not (has_rule(self.optimizer) and has_first_moment(self.optimizer))

    def state(self) -> PolicyState:
        """Return the last gradients, of an optimizer without a first moment."""
        if not self.reads_last_gradient:
            return super().state()
        return [{} if w.grad is None else {"gradient": w.grad} for w in self.weights]

    def load_state(self, state: PolicyState) -> None:
        """Take over gradients."""
        for weight, known in zip(self.weights, state, strict=True):
            if "gradient" in known:
                weight.grad = known["gradient"].clone()


_FIRST_DECAY, _SECOND_DECAY, _EPSILON = 0.9, 0.999, 1e-8


class AdamStep(WeightShift):
    """XPipe: along Adam's step whatever the optimizer (pipeoptim eq. 6).

    The moments are the optimizer's own if it is Adam or AdamW; otherwise they are kept here, with
    Adam's usual constants.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        super().__init__(weights, optimizer)
        self._is_adam = type(optimizer) in {Adam, AdamW} and has_rule(optimizer)
        self._moments: PolicyState = [{} for _ in self.weights]

    def before_update(self) -> None:
        """Let the moments follow the new gradients."""
        if self._is_adam:
            return
        for weight, moments in zip(self.weights, self._moments, strict=True):
            if weight.grad is None:
                continue
            if not moments:
                moments["first"] = torch.zeros_like(weight)
                moments["second"] = torch.zeros_like(weight)
                moments["step"] = torch.zeros(())
            gradient = weight.grad
            moments["first"].lerp_(gradient, 1 - _FIRST_DECAY)
            moments["second"].mul_(_SECOND_DECAY)
            moments["second"].addcmul_(gradient, gradient.conj(), value=1 - _SECOND_DECAY)
            moments["step"] += 1

    def move_(self, lead: int, rate_sum: float) -> None:
        """Move to Ŵ_{t+s} = W_t − lr · s · m̂ / (√v̂ + ε)."""
        if self._is_adam:
            predict_weights_(self.weights, self.optimizer, rate_sum)
            return
        for weight, moments in zip(self.weights, self._moments, strict=True):
            if moments:
                direction = adam_direction(
                    moments["first"],
                    moments["second"],
                    moments["step"].item(),
                    (_FIRST_DECAY, _SECOND_DECAY),
                    _EPSILON,
                )
                weight.sub_(direction, alpha=rate_sum)

    def state(self) -> PolicyState:
        """Return the moments."""
        return self._moments

    def load_state(self, state: PolicyState) -> None:
        """Take over moments."""
        for moments, known in zip(self._moments, state, strict=True):
            if known.keys() == {"first", "second", "step"}:
                moments.update({key: value.clone() for key, value in known.items()})


class Trajectory(WeightShift):
    """PipeMare's discrepancy correction, T2 (pipemare §3.2): back along the weights' trajectory.

    δ_{t+1} = γ · δ_t + (1 − γ) · (W_{t+1} − W_t) follows the weights, and the backward uses
    W_{t+s} − s · δ for the W_t of its forward. γ = D^(1/s), for the stage's s in steady state.

    Args:
        weights, optimizer: as in :class:`WeightShift`.
        decay: γ.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer, decay: float) -> None:
        super().__init__(weights, optimizer)
        self._decay = decay
        self._trajectory = [torch.zeros_like(weight) for weight in self.weights]

    def before_update(self) -> None:
        """Keep W_t in the cache, where a pass would keep it."""
        self._keep_weights()

    def after_update(self) -> None:
        """Follow the step from W_t to W_{t+1}."""
        # The cache is free until the next pass.
        torch._foreach_sub_(self._cache, self.weights)
        torch._foreach_mul_(self._trajectory, self._decay)
        torch._foreach_add_(self._trajectory, self._cache, alpha=self._decay - 1)

    def after_skipped_update(self) -> None:
        """Follow a step of length 0."""
        torch._foreach_mul_(self._trajectory, self._decay)

    def move_(self, lead: int, rate_sum: float) -> None:
        """Move to W + lead · δ."""
        torch._foreach_add_(self.weights, self._trajectory, alpha=lead)

    def state(self) -> PolicyState:
        """Return δ."""
        return [{"trajectory": trajectory} for trajectory in self._trajectory]

    def load_state(self, state: PolicyState) -> None:
        """Take over δ."""
        if state and all("trajectory" in known for known in state):
            self._trajectory = [known["trajectory"].clone() for known in state]
