"""Building torch's optimizers from their description, and naming their state by parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from drlpp.optimizer_spec import OptimizerSpec

OptimizerState = dict[str, dict[str, Any]]

_LAST_GRADIENT = "last_gradient"


def build_optimizer(
    spec: OptimizerSpec, weights: Sequence[Tensor], *, fused: bool = True
) -> Optimizer:
    """The optimizer that ``spec`` describes, over ``weights``.

    ``fused`` takes torch's one-pass kernels, which there are for real numbers only; without it,
    its plain loop over parameters.
    """
    options = spec.complete
    kernels: dict[str, bool] = (
        {"fused": True}
        if fused and not any(weight.is_complex() for weight in weights)
        else {"foreach": False}
    )
    if spec.name == "sgd":
        return SGD(weights, **options, **kernels)  # type: ignore[arg-type]
    betas = (options.pop("beta1"), options.pop("beta2"))
    kind = Adam if spec.name == "adam" else AdamW
    return kind(weights, betas=betas, **options, **kernels)  # type: ignore[arg-type]


def named_optimizer_state(
    optimizer: Optimizer, names: Sequence[str], weights: Sequence[Tensor]
) -> OptimizerState:
    """The state of every parameter by its name, so that any other placement can take it over."""
    state = {}
    for name, weight in zip(names, weights, strict=True):
        state[name] = dict(optimizer.state.get(weight, {}))
        if weight.grad is not None and _predicts_from_gradient(optimizer):
            state[name][_LAST_GRADIENT] = weight.grad
    return state


def load_optimizer_state(
    optimizer: Optimizer,
    names: Sequence[str],
    weights: Sequence[Tensor],
    state: Mapping[str, Mapping[str, Any]],
) -> None:
    """Put a state of :func:`named_optimizer_state` into ``optimizer``."""
    for name, weight in zip(names, weights, strict=True):
        if name in state:
            kept = {
                key: value.clone() if isinstance(value, Tensor) else value
                for key, value in state[name].items()
            }
            weight.grad = kept.pop(_LAST_GRADIENT, None)
            if kept:
                optimizer.state[weight] = kept


def _predicts_from_gradient(optimizer: Optimizer) -> bool:
    """Whether the direction of the last update is in the gradients, not in the state."""
    return isinstance(optimizer, SGD) and not optimizer.param_groups[0]["momentum"]
