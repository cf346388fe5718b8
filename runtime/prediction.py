"""Optimizer-dependent weight prediction (pipeoptim §III-A)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer


def predict_weights_(weights: Sequence[Tensor], optimizer: Optimizer, difference: int) -> None:
    """Move ``weights`` in place to Ŵ_{t+s} = W_t − lr · s · ΔW_t (pipeoptim eq. 5).

    ΔW_t is the direction of the optimizer's last update, by Table I: the momentum for SGD with
    momentum, and m̂ / (√v̂ + ε) with bias-corrected moments for Adam and AdamW (the decoupled
    weight decay of AdamW is not part of it). Both are read from the optimizer's state, which
    already contains the newest gradient g_t. SGD without momentum has ΔW_t = g_t, which is still
    in the weights' ``grad``. Weight decay of SGD and Adam is part of the gradient.

    This is the paper's prediction. The code released with it differs: it takes s = D − rank
    instead of D − rank − 1, and for SGD with momentum adds the gradient to a momentum that
    contains it already.

    Before the first update nothing is known about the direction, and the weights stay.

    Args:
        weights: the parameters of ``optimizer`` that are to be predicted.
        optimizer: with the state after update t.
        difference: s, the number of updates until the weights are wanted.
    """
    group = optimizer.param_groups[0]
    scale = -float(group["lr"]) * difference
    with torch.no_grad():
        if isinstance(optimizer, SGD) and group["momentum"]:
            known = [w for w in weights if "momentum_buffer" in optimizer.state[w]]
            momenta = [optimizer.state[w]["momentum_buffer"] for w in known]
            if known:
                torch._foreach_add_(known, momenta, alpha=scale)
        elif isinstance(optimizer, SGD):
            decay, rate = group["weight_decay"], float(group["lr"])
            for weight in weights:
                if weight.grad is not None:
                    # The decay in the last step was that of the weights before it.
                    before = (weight + rate * weight.grad) / (1 - rate * decay)
                    weight.add_(weight.grad.add(before, alpha=decay), alpha=scale)
        elif isinstance(optimizer, Adam | AdamW):
            beta1, beta2 = group["betas"]
            for weight in weights:
                state = optimizer.state[weight]
                if not state:
                    continue
                step = float(state["step"])
                denominator = state["exp_avg_sq"].div(1 - beta2**step).sqrt_().add_(group["eps"])
                weight.addcdiv_(state["exp_avg"], denominator, value=scale / (1 - beta1**step))
        else:
            raise TypeError(f"no prediction rule for {type(optimizer).__name__}")
