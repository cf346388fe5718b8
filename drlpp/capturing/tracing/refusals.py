"""Modules that cannot become a graph, known by what they are before anything is traced."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parallel import DistributedDataParallel

from drlpp.errors import InvalidModel

_NO_HOOKS = "workers run no hooks; put what it does into the forward, the loss or the optimizer"
_PARAMETRIZATIONS = {"SpectralNorm": "spectral_norm", "WeightNorm": "weight_norm"}
"""By the class of an old hook that computes a weight, what torch has instead."""


def refuse_unsupported(module: nn.Module, what: str) -> None:
    """Refuse a module that torch.export fails on, or of which it drops something.

    Args:
        module: the user's.
        what: how errors call it, such as ``model vgg16``.

    Raises:
        InvalidModel: the first reason.
    """
    reasons = [
        f"module {name} ({type(part).__name__}) {reason}"
        if name
        else f"{type(part).__name__} {reason}"
        for name, part in module.named_modules()
        for reason in _reasons(part)
    ]
    if torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks:
        reasons.append(f"a backward hook is registered for all modules; {_NO_HOOKS}")
    if reasons:
        raise InvalidModel(f"{what} cannot be captured: {reasons[0]}")


def _reasons(part: nn.Module) -> Iterator[str]:
    if isinstance(part, nn.DataParallel | DistributedDataParallel):
        yield "copies a model to several devices; pass what it wraps, model.module"
    if isinstance(part, torch.jit.ScriptModule):
        yield "is TorchScript; pass the module that it was made of"
        return
    if ".ao.nn.quantized" in type(part).__module__:
        yield "is quantized and cannot be trained; pass the model as it was before"
    if isinstance(part, LazyModuleMixin) and part.has_uninitialized_params():
        yield "is lazy and has no weights yet; call the model once in its factory"
    for hook in part._forward_pre_hooks.values():
        new = _PARAMETRIZATIONS.get(type(hook).__name__)
        if new and type(hook).__module__.startswith("torch.nn.utils."):
            yield f"computes its weight in a hook; use torch.nn.utils.parametrizations.{new}"
    if part._backward_hooks or part._backward_pre_hooks:
        yield f"has a backward hook; {_NO_HOOKS}"
    for name, weight in part.named_parameters(recurse=False):
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
            yield f"has a hook on the gradient of its parameter {name}; {_NO_HOOKS}"
    for name in (*part._modules, *part._parameters, *part._buffers):
        if not name.isprintable() or '"' in name or "\\" in name:
            yield f"gives something the name {name!r}; no quotation marks or line breaks in names"
