"""Optimizer-dependent weight prediction: where weights go, by the rule of their optimizer.

The rules of Table I (pipeoptim §III-A), and those of torch's other optimizers whose last update
can be derived from what they keep: their state, which already contains the newest gradient g_t, and
g_t itself where a rule needs it, which is still in the weights' ``grad``.

ΔW_t is the direction of the last update, lr·ΔW_t = W_{t−1} − W_t. A decoupled weight decay is not
part of it; a coupled one is part of the gradient. In the names of torch's documentation: m and v
are the moments, λ is the weight decay.

This is the paper's prediction. The code released with it differs: it takes s = D − rank instead of
D − rank − 1, and for SGD with momentum adds the gradient to a momentum that contains it already.
In Adam's rule ε is added to the root of v̂, as in torch and in the paper's first version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
)

Group = Mapping[str, Any]

_SMOOTHED = ("momentum_buffer", "exp_avg", "grad_avg")
"""Where optimizers keep a smoothed gradient, the one that they step along first."""


def has_rule(optimizer: Optimizer) -> bool:
    """Return whether :func:`predict_weights_` knows the direction of this optimizer's update."""
    return _rule(optimizer) is not None


def predict_weights_(weights: Sequence[Tensor], optimizer: Optimizer, rate_sum: float) -> None:
    """Move ``weights`` in place to Ŵ_{t+s} = W_t − (lr_{t+1} + … + lr_{t+s}) · ΔW_t.

    With a constant learning rate this is pipeoptim's eq. 5, W_t − lr · s · ΔW_t.

    A weight stays if nothing is known about its direction: before its first update, or if its
    rule needs the last gradient and there was none.

    Args:
        weights: the parameters of ``optimizer`` that are to be predicted.
        optimizer: has a rule; with the state after update t, and as ``lr`` the learning rate of
            that update.
        rate_sum: the sum of the learning rates of the s updates until the weights are wanted.
    """
    rule = _rule(optimizer)
    if rule is None:
        raise TypeError(f"no prediction rule for {type(optimizer).__name__}")
    group = optimizer.param_groups[0]
    with torch.no_grad():
        rule.predict(_last_updates(weights, optimizer, rule), group, rate_sum)


def last_gradient_needed(optimizer: Optimizer) -> bool:
    """Return whether a prediction reads the weights' ``grad``, so that it belongs to the state."""
    rule = _rule(optimizer)
    return rule is not None and rule.reads_gradient(optimizer.param_groups[0])


def has_first_moment(optimizer: Optimizer) -> bool:
    """Return whether an optimizer of these options keeps a momentum, or averages gradients."""
    group = optimizer.param_groups[0]
    return bool(group.get("momentum") or group.get("centered") or "betas" in group)


def smoothed_gradient(optimizer: Optimizer, weight: Tensor) -> Tensor | None:
    """Return what SpecTrain predicts with (pipeoptim eq. 6): the momentum that an optimizer has.

    Returns:
        The momentum of SGD and RMSprop, or the first moment of optimizers that have one, or the
        last gradient; None before the first update.
    """
    state = optimizer.state.get(weight, {})
    for key in _SMOOTHED:
        if key in state:
            return state[key]
    return weight.grad


def add_adam_directions_(
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
        weights: real tensors, changed in place.
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
    for batch in _batches(weights):
        denominators = torch._foreach_sqrt(second[batch])
        torch._foreach_add_(denominators, [eps * root for root in roots[batch]])
        torch._foreach_addcdiv_(weights[batch], first[batch], denominators, scales[batch])


def adam_direction(
    first: Tensor, second: Tensor, step: float, betas: tuple[float, float], eps: float
) -> Tensor:
    """Return m̂_t / (√v̂_t + ε) of one weight, from its biased moments after ``step`` updates."""
    direction = torch.zeros_like(first)
    add_adam_directions_([direction], [first], [second], [step], betas, eps, 1.0)
    return direction


def _batches(weights: Sequence[Tensor]) -> list[slice]:
    """Return what to work on at once: one weight on a CPU, whose caches hold one, else all."""
    if all(weight.is_cpu for weight in weights):
        return [slice(index, index + 1) for index in range(len(weights))]
    return [slice(None)]


@dataclass(frozen=True)
class _LastUpdate:
    """What is left of the last update of a weight. Complex tensors are shown as pairs of reals.

    Attributes:
        weight: W_t.
        gradient: g_t without weight decay, if the rule reads it.
        state: the optimizer's, after the update.
    """

    weight: Tensor
    gradient: Tensor | None
    state: Mapping[str, Tensor]

    @property
    def step(self) -> float:
        """t, the number of updates."""
        return float(self.state["step"])

    def direction(self, group: Group, slope: Tensor, offset: Tensor | None = None) -> Tensor:
        """Return ΔW_t = slope · (g_t + λ·W_{t−1}) + offset, from W_t = W_{t−1} − lr · ΔW_t.

        Solved for ΔW_t: (slope · (g_t + λ·W_t) + offset) / (1 − lr·λ·slope).
        """
        assert self.gradient is not None, "the rule says that it reads the gradient"
        decay = 0.0 if group.get("decoupled_weight_decay") else group["weight_decay"]
        direction = self.gradient.add(self.weight, alpha=decay).mul_(slope)
        if offset is not None:
            direction += offset
        if decay:
            kept = 1 - group["lr"] * decay * slope
            # Where an update cancels the weight, nothing is left of W_{t−1}: W_t stands for it.
            direction /= kept.masked_fill_(kept.abs() < sqrt(torch.finfo(kept.dtype).eps), 1.0)
        return direction


Predict = Callable[[Sequence[_LastUpdate], Group, float], None]


@dataclass(frozen=True)
class _Rule:
    """How an optimizer moves weights.

    Attributes:
        predict: subtracts ``rate_sum`` times their direction from weights.
        reads_gradient: whether g_t is needed, given the optimizer's options.
        covers: whether the rule holds with these options.
    """

    predict: Predict
    reads_gradient: Callable[[Group], bool] = lambda group: False
    covers: Callable[[Group], bool] = lambda group: True


def _rule(optimizer: Optimizer) -> _Rule | None:
    # A subclass may do otherwise, and stages have one group.
    rule = _RULES.get(type(optimizer))
    if rule is None or len(optimizer.param_groups) != 1:
        return None
    group = optimizer.param_groups[0]
    return rule if not group["maximize"] and rule.covers(group) else None


def _last_updates(
    weights: Sequence[Tensor], optimizer: Optimizer, rule: _Rule
) -> list[_LastUpdate]:
    """Return the last updates of those weights whose direction is known."""
    group = optimizer.param_groups[0]
    reads_gradient = rule.reads_gradient(group)
    stateless = isinstance(optimizer, SGD) and not group["momentum"]
    found = []
    for weight in weights:
        state = optimizer.state.get(weight, {})
        if (state or stateless) and not (reads_gradient and weight.grad is None):
            gradient = _real(weight.grad) if reads_gradient and weight.grad is not None else None
            real_state = {key: _real(value) for key, value in state.items()}
            found.append(_LastUpdate(_real(weight), gradient, real_state))
    return found


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _one_by_one(direction: Callable[[_LastUpdate, Group], Tensor]) -> Predict:
    """Build a rule that is written for one weight, so that nothing bigger than it is allocated."""

    def predict(updates: Sequence[_LastUpdate], group: Group, rate_sum: float) -> None:
        for update in updates:
            update.weight.sub_(direction(update, group), alpha=rate_sum)

    return predict


def _predict_sgd(updates: Sequence[_LastUpdate], group: Group, rate_sum: float) -> None:
    """Subtract the momentum m_t; g_t + λ·W_{t−1} without momentum, plus u·m_t with Nesterov's."""
    if group["momentum"] and not group["nesterov"]:
        if updates:
            momenta = [update.state["momentum_buffer"] for update in updates]
            torch._foreach_add_([update.weight for update in updates], momenta, alpha=-rate_sum)
        return
    for update in updates:
        slope = torch.ones((), dtype=update.weight.dtype)
        offset = None
        if group["nesterov"]:
            offset = update.state["momentum_buffer"] * group["momentum"]
        update.weight.sub_(update.direction(group, slope, offset), alpha=rate_sum)


def _predict_adam(updates: Sequence[_LastUpdate], group: Group, rate_sum: float) -> None:
    """Subtract m̂_t / (√v̂_t + ε); AMSGrad takes the greatest v so far."""
    second = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
    add_adam_directions_(
        [update.weight for update in updates],
        [update.state["exp_avg"] for update in updates],
        [update.state[second] for update in updates],
        [update.step for update in updates],
        group["betas"],
        group["eps"],
        -rate_sum,
    )


def _nadam(update: _LastUpdate, group: Group) -> Tensor:
    """Return (μ_{t+1}·m_t / (1 − Πμ_{…t+1}) + (1 − μ_t)·g_t / (1 − Πμ_{…t})) / (√v̂_t + ε)."""
    (beta1, beta2), step = group["betas"], update.step
    now, following = (
        beta1 * (1 - 0.5 * 0.96 ** (count * group["momentum_decay"])) for count in (step, step + 1)
    )
    product = float(update.state["mu_product"])
    slope = update.state["exp_avg_sq"].div(1 - beta2**step).sqrt_().add_(group["eps"]).reciprocal_()
    offset = update.state["exp_avg"] * slope
    offset *= following / (1 - product * following)
    slope *= (1 - now) / (1 - product)
    return update.direction(group, slope, offset)


def _radam(update: _LastUpdate, group: Group) -> Tensor:
    """Return m̂_t·r_t / (√v̂_t + ε/√(1 − β₂^t)).

    While the variance is not tractable (ρ_t ≤ 5), return m̂_t.
    """
    (beta1, beta2), step = group["betas"], update.step
    direction = update.state["exp_avg"] / (1 - beta1**step)
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / (1 - beta2**step)
    if length <= 5:
        return direction
    rectification = sqrt(
        (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    )
    direction *= rectification * sqrt(1 - beta2**step)
    return direction.div_(update.state["exp_avg_sq"].sqrt().add_(group["eps"]))


def _adamax(update: _LastUpdate, group: Group) -> Tensor:
    """Return m̂_t / u_t, with the decayed greatest magnitude u."""
    direction = update.state["exp_avg"] / update.state["exp_inf"]
    return direction.div_(1 - group["betas"][0] ** update.step)


def _rmsprop(update: _LastUpdate, group: Group) -> Tensor:
    """Return the momentum, or g_t / (√v_t + ε).

    v_t is less the square of the mean if centered.
    """
    if group["momentum"]:
        return update.state["momentum_buffer"]
    variance = update.state["square_avg"]
    if group["centered"]:
        mean = update.state["grad_avg"]
        variance = variance.addcmul(mean, mean, value=-1)
    return update.direction(group, variance.sqrt().add_(group["eps"]).reciprocal_())


def _adagrad(update: _LastUpdate, group: Group) -> Tensor:
    """Return g_t / (√Σg² + ε) / (1 + (t − 1)·η), with the decay η of the learning rate."""
    slope = update.state["sum"].sqrt().add_(group["eps"]).reciprocal_()
    slope /= 1 + (update.step - 1) * group["lr_decay"]
    return update.direction(group, slope)


def _adadelta(update: _LastUpdate, group: Group) -> Tensor:
    """Return Δx = √((u_{t−1} + ε) / (v_t + ε)) · g_t.

    The state already holds u_t = ρ·u_{t−1} + (1 − ρ)·Δx².

    Solved for Δx: √((u_t + ρ·ε) / (ρ·(v_t + ε) + (1 − ρ)·g_t²)) · g_t.
    """
    assert update.gradient is not None, "the rule says that it reads the gradient"
    rho, eps = group["rho"], group["eps"]
    below = update.state["square_avg"].add(eps).mul_(rho)
    below.addcmul_(update.gradient, update.gradient, value=1 - rho)
    above = update.state["acc_delta"].add(rho * eps)
    return above.div_(below).sqrt_().mul_(update.gradient)


_RULES: dict[type[Optimizer], _Rule] = {
    SGD: _Rule(_predict_sgd, lambda group: not group["momentum"] or group["nesterov"]),
    Adam: _Rule(_predict_adam),
    AdamW: _Rule(_predict_adam),
    NAdam: _Rule(_one_by_one(_nadam), lambda group: True),
    RAdam: _Rule(_one_by_one(_radam)),
    Adamax: _Rule(_one_by_one(_adamax)),
    RMSprop: _Rule(_one_by_one(_rmsprop), lambda group: not group["momentum"]),
    Adagrad: _Rule(_one_by_one(_adagrad), lambda group: True),
    Adadelta: _Rule(
        _one_by_one(_adadelta),
        lambda group: True,
        # With weight decay the equation for Δx has degree four; with ρ = 0 it is 0 / 0 where g is.
        lambda group: not group["weight_decay"] and group["rho"] > 0,
    ),
}
"""What Rprop, Adafactor and ASGD keep does not tell how far their last step went."""
