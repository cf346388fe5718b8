"""Building torch's optimizers from their description."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from drlpp.specs.optimizer_spec import OptimizerSpec

OptimizerState = dict[str, dict[str, Any]]

KERNELS = ("fused", "foreach")
"""Options of an optimizer that are chosen for a device."""

_READ_AS_NUMBERS = ("step", "mu_product", "rate")


def build_optimizer(
    spec: OptimizerSpec,
    weights: Sequence[Tensor],
    *,
    fused: bool = True,
    shared_by: Callable[..., Optimizer] | None = None,
) -> Optimizer:
    """Build the optimizer that ``spec`` describes, over ``weights``.

    ``fused`` takes torch's one-pass kernels on a CPU, where the class has them and the weights are
    real numbers, and otherwise leaves the choice to torch: all weights at once on an accelerator,
    one after another on a CPU, whose caches hold one. On an accelerator the one-pass kernels would
    keep the number of steps there, and every prediction would have to wait for it. Without
    ``fused``, it is torch's plain loop. ``shared_by`` makes one of several ranks, such as ZeRO's,
    out of an ``optimizer_class`` and its options.

    Raises:
        InvalidInput: if there is no such optimizer.
    """
    assert not spec.groups, "each group has an optimizer of its own"
    kind: Any = spec.find()
    make = kind if shared_by is None else partial(shared_by, optimizer_class=kind)
    return make(weights, **spec.complete, **_kernels(kind, weights, fused))


def _kernels(kind: type[Optimizer], weights: Sequence[Tensor], fused: bool) -> dict[str, bool]:
    arguments = signature(kind).parameters
    if not fused:
        return {"foreach": False} if "foreach" in arguments else {}
    # What other classes mean by the word is theirs. Of shards, torch has them for these alone.
    whole = all(type(weight.data) is Tensor for weight in weights)
    suitable = (whole or kind in (torch.optim.Adam, torch.optim.AdamW)) and all(
        weight.is_cpu and not weight.is_complex() for weight in weights
    )
    return {"fused": True} if "fused" in arguments and is_known(kind) and suitable else {}


def is_known(kind: type[Optimizer]) -> bool:
    """Return whether a class is torch's, or ours, so that its options and state are known."""
    return kind.__module__.partition(".")[0] in {"torch", "drlpp"}


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
