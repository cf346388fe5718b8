"""The weights of a stage, under the names that they have in the whole model."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def add_parameter(
    module: nn.Module, name: str, shape: tuple[int, ...], dtype: torch.dtype, *, trained: bool
) -> None:
    """Give ``module`` a parameter with a dotted name, without a value yet."""
    owner, last = _owner(module, name)
    owner.register_parameter(last, nn.Parameter(_empty(shape, dtype), requires_grad=trained))


def add_buffer(
    module: nn.Module, name: str, shape: tuple[int, ...], dtype: torch.dtype, *, persistent: bool
) -> None:
    """Give ``module`` a buffer with a dotted name, without a value yet."""
    owner, last = _owner(module, name)
    owner.register_buffer(last, _empty(shape, dtype), persistent=persistent)


def device_of(module: nn.Module) -> torch.device:
    """Return the device that ``module`` computes on; that of its tensors, else torch's default."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.get_default_device()


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    return module, last


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype)
