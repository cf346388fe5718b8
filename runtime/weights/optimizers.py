"""Building torch's optimizers from their description, and naming their state by parameter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from drlpp.errors import InvalidFile
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
    suitable = all(weight.is_cpu and not weight.is_complex() for weight in weights)
    return {"fused": True} if "fused" in arguments and _is_torchs(kind) and suitable else {}


def _is_torchs(kind: type[Optimizer]) -> bool:
    """Whether a class is torch's, or ours, so that its state is known."""
    return kind.__module__.partition(".")[0] in {"torch", "drlpp"}


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

    Raises:
        InvalidFile: the state does not suit the weights or the optimizer; nothing is changed.
    """
    # The checkpoint may be of another device.
    kept_options = {*_KERNELS, *own}
    _check_state(optimizer, names, weights, state, kept_options)
    for name, weight in zip(names, weights, strict=True):
        if name in state:
            kept = state_on(weight.device, state[name])
            weight.grad = kept.pop(_LAST_GRADIENT, None)
            group = kept.pop(_GROUP, {})
            found = {k: v for k, v in group.items() if k not in kept_options}
            optimizer.param_groups[0].update(found)
            if kept:
                optimizer.state[weight] = kept


def _check_state(
    optimizer: Optimizer,
    names: Sequence[str],
    weights: Sequence[Tensor],
    state: Mapping[str, Mapping[str, Any]],
    kept_options: Collection[str],
) -> None:
    """Check that the optimizer could have left this state: fused kernels read it as it comes.

    Of a user's own class it is not known what it keeps.
    """
    known = _is_torchs(type(optimizer))
    probed: dict[tuple[int, torch.dtype], dict[str, Any]] = {}
    for name, weight in zip(names, weights, strict=True):
        if name not in state:
            continue
        found = dict(state[name])
        options, gradient = found.pop(_GROUP, {}), found.pop(_LAST_GRADIENT, None)
        if gradient is not None:
            check_alike(f"the last gradient of {name}", gradient, weight)
        for option, value in options.items():
            expected = optimizer.param_groups[0].get(option)
            if known and option not in kept_options and not _same_kind(expected, value):
                raise InvalidFile(
                    f"the optimizer's option {option!r} of {name} is {value!r}; expected such as "
                    f"{expected!r}"
                )
        if not known:
            continue
        kind = weight.dim(), weight.dtype
        if kind not in probed:
            probed[kind] = _state_after_a_step(optimizer, weight)
        sizes = dict(zip(_probed_sizes(weight), weight.shape, strict=True)) | {1: 1}
        # Ours keep some of it for matrices of certain sizes only.
        missing = probed[kind].keys() - found.keys() if found else set()
        if missing and type(optimizer).__module__.startswith("torch."):
            raise InvalidFile(
                f"the optimizer's state of {name} has no {min(missing)!r}; expected "
                f"{', '.join(probed[kind])}"
            )
        for key, value in found.items():
            if key not in probed[kind]:
                raise InvalidFile(
                    f"the optimizer's state of {name} has {key!r}; expected "
                    f"{', '.join(probed[kind]) or 'none'}"
                )
            if isinstance(example := probed[kind][key], Tensor):
                shape = tuple(sizes[size] for size in example.shape)
                _check_tensor(f"{key!r} of the optimizer's state of {name}", value, shape, example)
            elif not _same_kind(example, value):
                raise InvalidFile(
                    f"{key!r} of the optimizer's state of {name} is {value!r}; expected such as "
                    f"{example!r}"
                )


def _probed_sizes(weight: Tensor) -> tuple[int, ...]:
    """Return sizes that all differ, as many as the weight has."""
    return tuple(range(2, 2 + weight.dim()))


def _state_after_a_step(optimizer: Optimizer, weight: Tensor) -> dict[str, Any]:
    """Return what a step leaves of a small weight whose sizes are :func:`_probed_sizes`."""
    arguments = signature(type(optimizer)).parameters
    options = {k: v for k, v in optimizer.defaults.items() if k in arguments}
    options |= {kernel: None for kernel in _KERNELS if kernel in arguments}
    small = torch.ones(_probed_sizes(weight), dtype=weight.dtype, requires_grad=True)
    small.grad = torch.ones_like(small)
    kind: Any = type(optimizer)
    probe = kind([small], **options)
    probe.step()
    return dict(probe.state[small])


def _same_kind(expected: object, found: object) -> bool:
    """Return whether two options differ in numbers alone."""
    if isinstance(expected, tuple | list):
        return (
            isinstance(found, tuple | list)
            and len(found) == len(expected)
            and all(map(_same_kind, expected, found))
        )
    if isinstance(expected, bool | str | None):
        return type(found) is type(expected) and found == expected
    return isinstance(found, int | float) and not isinstance(found, bool)


def check_alike(what: str, found: object, weight: Tensor) -> None:
    """Check that ``what`` a checkpoint has is a tensor of a weight's shape and type.

    Raises:
        InvalidFile: it is something else.
    """
    _check_tensor(what, found, tuple(weight.shape), weight)


def _check_tensor(what: str, found: object, shape: tuple[int, ...], like: Tensor) -> None:
    if not isinstance(found, Tensor):
        raise InvalidFile(f"{what} is {found!r}; expected a tensor")
    if (tuple(found.shape), found.dtype) != (shape, like.dtype):
        raise InvalidFile(
            f"{what} has shape {tuple(found.shape)} and type {found.dtype}; expected {shape} and "
            f"{like.dtype}"
        )


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
