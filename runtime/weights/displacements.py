"""Moving a stage's weights away from W_t for one pass, and back: where each policy moves them.

pipeoptim, algorithm 1, lines 5 to 10: cache the weights, move them in place, pass, recover. The
policies differ in the direction only: pipeoptim eq. 6 has three ways to predict future weights,
and PipeMare's discrepancy correction (T2) looks back along the weights' recent trajectory.

ΔW_t is the direction of the last update, lr·ΔW_t = W_{t−1} − W_t. This is the paper's prediction.
The code released with it differs: it takes s = D − rank instead of D − rank − 1, and for SGD with
momentum adds the gradient to a momentum that contains it already. In Adam's rule ε is added to the
root of v̂, as in torch and in the paper's first version.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import sqrt

import torch
from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter
from torch.optim import SGD, Adam, AdamW, Optimizer

from drlpp.runtime.weights.optimizers import is_known
from drlpp.runtime.weights.policies import PolicyState, Vanilla
from drlpp.schedule.weight_policies import WeightUse


class PredictedWeights(Vanilla):
    """Passes use weights that are predicted, or corrected, from the newest; two versions at most.

    Where nothing is to be looked ahead, as on the last stage, nothing is copied.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        super().__init__(weights, optimizer)
        self._cache: list[Tensor] = []

    @contextmanager
    def lent(self, use: WeightUse, *, backward: bool = False) -> Iterator[list[Tensor]]:
        lead = use.backward_lead if backward else use.forward_lead
        if lead == 0:
            yield self.weights
            return
        with self._moving():
            self._displace(lead, self.rate_sum(lead))
        try:
            yield self.weights
        finally:
            with self._moving():
                self._recover()

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Enclose what moves the weights, unseen by autograd."""
        with torch.no_grad(), _unsafe_preserve_version_counter(tuple(self.weights)):
            yield

    def _displace(self, lead: int, rate_sum: float) -> None:
        """Keep W_t, and move."""
        self._keep_weights()
        self._move(lead, rate_sum)

    def _keep_weights(self) -> None:
        if not self._cache:
            self._cache = [torch.empty_like(weight) for weight in self.weights]
        torch._foreach_copy_(self._cache, self.weights)

    @abstractmethod
    def _move(self, lead: int, rate_sum: float) -> None:
        """Write the weights ``lead`` updates ahead over W_t.

        Args:
            lead: how many updates; negative to look back.
            rate_sum: the sum of the learning rates of the next ``lead`` updates.
        """

    def _recover(self) -> None:
        """Restore W_t, bit for bit."""
        torch._foreach_copy_(self.weights, self._cache)

    def copies(self) -> list[Tensor]:
        return self._cache


class TableOne(PredictedWeights):
    """PipeOptim by the state of SGD with momentum, Adam and AdamW (pipeoptim, Table I)."""

    @staticmethod
    def has_adam(optimizer: Optimizer) -> bool:
        """Return whether the optimizer is Adam or AdamW; a subclass may do otherwise."""
        return type(optimizer) in {Adam, AdamW}

    @classmethod
    def has(cls, optimizer: Optimizer) -> bool:
        """Return whether the table has the optimizer: not without momentum, or with Nesterov's."""
        group = optimizer.param_groups[0]
        with_momentum = type(optimizer) is SGD and group["momentum"] and not group["nesterov"]
        return bool(with_momentum) or cls.has_adam(optimizer)

    def _move(self, lead: int, rate_sum: float) -> None:
        """Move to Ŵ_{t+s} = W_t − lr · s · ΔW_t (pipeoptim eq. 5), with the rates of s updates.

        A weight stays before its first update.
        """
        group = self.optimizer.param_groups[0]
        states = self.optimizer.state
        known = [(weight, states[weight]) for weight in self.weights if states.get(weight)]
        weights = [_real(weight) for weight, _ in known]
        if isinstance(self.optimizer, SGD):
            momenta = [_real(state["momentum_buffer"]) for _, state in known]
            if weights:
                torch._foreach_add_(weights, momenta, alpha=-rate_sum)
            return
        second = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
        _add_adam_steps(
            weights,
            [_real(state["exp_avg"]) for _, state in known],
            [_real(state[second]) for _, state in known],
            [float(state["step"]) for _, state in known],
            group["betas"],
            group["eps"],
            -rate_sum,
        )


_PIECE = 65536


class LastStep(PredictedWeights):
    """Along the optimizer's last step, ΔW_t = (W_{t−1} − W_t) / lr, a decay of weights included.

    So PipeOptim predicts for optimizers that are not in its table, SpecTrain for those without a
    first moment, and policy ``last-step`` for all.

    W_{t−1} is kept, and its storage serves to cache W_t while the weights are moved, so that no
    more than two versions of the weights are held.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        super().__init__(weights, optimizer)
        self._ratio: float | None = None
        self._rate = 0.0

    @torch.no_grad()
    def _step(self, *, skipped: bool) -> None:
        if not skipped:
            self._keep_weights()
            self._rate = float(self.optimizer.param_groups[0]["lr"])
        super()._step(skipped=skipped)

    def _displace(self, lead: int, rate_sum: float) -> None:
        """Move, and leave W_t in the storage of W_{t−1}."""
        # Without a step so far nothing is known about the direction; and W_{t−1} could not be
        # recovered from a tiny part of the step.
        if rate_sum > 1e-4 * self._rate > 0:
            self._move(lead, rate_sum)

    def _move(self, lead: int, rate_sum: float) -> None:
        """Move to Ŵ = W_t + (W_t − W_{t−1}) · rate_sum / lr, a piece after another."""
        self._ratio = rate_sum / self._rate
        for weight, previous in self._pieces():
            moved = weight.add(weight.sub(previous), alpha=self._ratio)
            previous.copy_(weight)
            weight.copy_(moved)

    def _recover(self) -> None:
        """Restore W_t bit for bit, and W_{t−1} to rounding."""
        if self._ratio is None:
            return
        for weight, current in self._pieces():
            step = weight.sub(current)
            weight.copy_(current)
            current.sub_(step, alpha=1 / self._ratio)
        self._ratio = None

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield small parts of every weight and of what is kept of it."""
        for weight, kept in zip(self.weights, self._cache, strict=True):
            # Both are contiguous, as the stage's runner makes them.
            yield from zip(weight.view(-1).split(_PIECE), kept.view(-1).split(_PIECE), strict=True)

    def state(self) -> PolicyState:
        """Return W_{t−1}, and the learning rate of the step from it."""
        if not self._rate:
            return super().state()
        rate = torch.tensor(self._rate, dtype=torch.float64)
        return [{"previous": previous, "rate": rate} for previous in self._cache]

    def load_state(self, state: PolicyState) -> None:
        if state and all("previous" in known for known in state):
            self._cache = [known["previous"].clone() for known in state]
            self._rate = state[0]["rate"].item()


class SmoothedGradient(PredictedWeights):
    """SpecTrain: along the smoothed gradients m of SGD with momentum (pipeoptim eq. 6).

    Of an optimizer of another kind it takes the first moment, though the paper says that SpecTrain
    does not work with those.
    """

    @staticmethod
    def has(optimizer: Optimizer) -> bool:
        """Return whether the optimizer keeps a first moment, where it is known to look for it."""
        group = optimizer.param_groups[0]
        return is_known(type(optimizer)) and bool(group.get("momentum") or "betas" in group)

    def _move(self, lead: int, rate_sum: float) -> None:
        """Move to Ŵ_{t+s} = W_t − lr · s · m."""
        for weight in self.weights:
            state = self.optimizer.state.get(weight, {})
            smoothed = state.get("momentum_buffer", state.get("exp_avg"))
            if smoothed is not None:
                weight.sub_(smoothed, alpha=rate_sum)


_FIRST_DECAY, _SECOND_DECAY, _EPSILON = 0.9, 0.999, 1e-8


class AdamStep(PredictedWeights):
    """XPipe with another optimizer than Adam: along Adam's step all the same (pipeoptim eq. 6).

    The moments are kept here, with Adam's usual constants.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer) -> None:
        super().__init__(weights, optimizer)
        self._moments: PolicyState = [{} for _ in self.weights]

    @torch.no_grad()
    def _step(self, *, skipped: bool) -> None:
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
        super()._step(skipped=skipped)

    def _move(self, lead: int, rate_sum: float) -> None:
        """Move to Ŵ_{t+s} = W_t − lr · s · m̂ / (√v̂ + ε)."""
        for weight, moments in zip(self.weights, self._moments, strict=True):
            if moments:
                direction = torch.zeros_like(weight)
                first, second, step = moments["first"], moments["second"], moments["step"].item()
                betas = _FIRST_DECAY, _SECOND_DECAY
                _add_adam_steps([direction], [first], [second], [step], betas, _EPSILON, 1.0)
                weight.sub_(direction, alpha=rate_sum)

    def state(self) -> PolicyState:
        return self._moments

    def load_state(self, state: PolicyState) -> None:
        for moments, known in zip(self._moments, state, strict=True):
            if known.keys() == {"first", "second", "step"}:
                moments.update({key: value.clone() for key, value in known.items()})


class Trajectory(PredictedWeights):
    """PipeMare's discrepancy correction, T2 (pipemare §3.2): back along the weights' trajectory.

    δ_{t+1} = γ · δ_t + (1 − γ) · (W_{t+1} − W_t) follows the weights, and the backward uses
    W_{t+s} − s · δ for the W_t of its forward. γ = D^(1/s), for the stage's s in steady state.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: Optimizer, decay: float) -> None:
        super().__init__(weights, optimizer)
        self._decay = decay
        self._trajectory = [torch.zeros_like(weight) for weight in self.weights]

    @torch.no_grad()
    def _step(self, *, skipped: bool) -> None:
        """Follow the step from W_t, kept in the cache that is free between passes, to W_{t+1}."""
        self._keep_weights()
        super()._step(skipped=skipped)
        torch._foreach_sub_(self._cache, self.weights)
        torch._foreach_mul_(self._trajectory, self._decay)
        torch._foreach_add_(self._trajectory, self._cache, alpha=self._decay - 1)

    def _move(self, lead: int, rate_sum: float) -> None:
        """Move to W + lead · δ."""
        torch._foreach_add_(self.weights, self._trajectory, alpha=lead)

    def state(self) -> PolicyState:
        return [{"trajectory": trajectory} for trajectory in self._trajectory]

    def load_state(self, state: PolicyState) -> None:
        if state and all("trajectory" in known for known in state):
            self._trajectory = [known["trajectory"].clone() for known in state]


def _add_adam_steps(
    weights: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[float],
    betas: tuple[float, float],
    eps: float,
    scale: float,
) -> None:
    """Add ``scale`` · m̂_t / (√v̂_t + ε) to every weight, as in Table I for Adam and AdamW.

    Args:
        weights: changed in place.
        first: m_t of every weight, biased.
        second: v_t of every weight, biased; with AMSGrad the greatest so far.
        steps: t of every weight, 1 or more.
        betas: β₁ and β₂.
        eps: ε.
        scale: such as −lr · s.
    """
    # m̂ / (√v̂ + ε) = r/(1 − β₁^t) · m / (√v + r·ε) with r = √(1 − β₂^t): a pass less over memory.
    roots = [sqrt(1 - betas[1] ** step) for step in steps]
    scales = [scale * r / (1 - betas[0] ** step) for r, step in zip(roots, steps, strict=True)]
    # One weight at once on a CPU, whose caches hold one, else all.
    alone = all(weight.is_cpu for weight in weights)
    for batch in [slice(k, k + 1) for k in range(len(weights))] if alone else [slice(None)]:
        denominators = torch._foreach_sqrt(second[batch])
        torch._foreach_add_(denominators, [eps * root for root in roots[batch]])
        torch._foreach_addcdiv_(weights[batch], first[batch], denominators, scales[batch])


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
