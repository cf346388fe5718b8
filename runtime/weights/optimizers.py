"""Building torch's optimizers from their description, and naming their state by parameter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from drlpp.runtime.weights.update_rules import last_gradient_needed
from drlpp.specs.optimizer_spec import OptimizerSpec

OptimizerState = dict[str, dict[str, Any]]

_LAST_GRADIENT = "last_gradient"
_GROUP = "group"
_KERNELS = ("fused", "foreach")
_READ_AS_NUMBERS = ("step", "mu_product", "rate")


def build_optimizer(
    spec: OptimizerSpec, weights: Sequence[Tensor], *, fused: bool = True
) -> Optimizer:
    """Build the optimizer that ``spec`` describes, over ``weights``.

    ``fused`` takes torch's one-pass kernels on a CPU, where the class has them and the weights are
    real numbers, and otherwise leaves the choice to torch: all weights at once on an accelerator,
    one after another on a CPU, whose caches hold one. On an accelerator the one-pass kernels would
    keep the number of steps there, and every prediction would have to wait for it. Without
    ``fused``, it is torch's plain loop.

    Raises:
        InvalidInput: if there is no such optimizer.
    """
    assert not spec.groups, "each group has an optimizer of its own"
    kind: Any = spec.find()
    return kind(weights, **spec.complete, **_kernels(kind, weights, fused))


def _kernels(kind: type[Optimizer], weights: Sequence[Tensor], fused: bool) -> dict[str, bool]:
    arguments = signature(kind).parameters
    if not fused:
        return {"foreach": False} if "foreach" in arguments else {}
    # What other classes mean by the word is theirs.
    is_torchs = kind.__module__.partition(".")[0] in {"torch", "drlpp"}
    suitable = all(weight.is_cpu and not weight.is_complex() for weight in weights)
    return {"fused": True} if "fused" in arguments and is_torchs and suitable else {}


def named_optimizer_state(
    optimizer: Optimizer,
    names: Sequence[str],
    weights: Sequence[Tensor],
    own: Collection[str] = (),
) -> OptimizerState:
    """Return every parameter's state by its name, so that any other placement can take it over.

    The stage's ``own`` options are left out.
    """
    state = {}
    for name, weight in zip(names, weights, strict=True):
        state[name] = dict(optimizer.state.get(weight, {}))
        # The rate of the last update, and what an optimizer keeps for all weights together.
        state[name][_GROUP] = {
            k: v for k, v in optimizer.param_groups[0].items() if k not in {"params", *own}
        }
        if weight.grad is not None and last_gradient_needed(optimizer):
            state[name][_LAST_GRADIENT] = weight.grad
    return state


def load_optimizer_state(
    optimizer: Optimizer,
    names: Sequence[str],
    weights: Sequence[Tensor],
    state: Mapping[str, Mapping[str, Any]],
    own: Collection[str] = (),
) -> None:
    """Put a state of :func:`named_optimizer_state` into ``optimizer``.

    It keeps its ``own`` options, whatever they are in the state.
    """
    for name, weight in zip(names, weights, strict=True):
        if name in state:
            kept = state_on(weight.device, state[name])
            weight.grad = kept.pop(_LAST_GRADIENT, None)
            group = kept.pop(_GROUP, {})
            # The checkpoint may be of another device.
            kept_options = {*_KERNELS, *own}
            found = {k: v for k, v in group.items() if k not in kept_options}
            optimizer.param_groups[0].update(found)
            if kept:
                optimizer.state[weight] = kept


def state_on(device: torch.device, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of what is known of a weight, its tensors on ``device``.

    What every step or prediction reads as a number stays with the host.
    """
    return {
        key: value.to(value.device if key in _READ_AS_NUMBERS else device, copy=True)
        if isinstance(value, Tensor)
        else value
        for key, value in state.items()
    }
