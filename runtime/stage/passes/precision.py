"""The element types of passes: torch's autocast, and the operators that a model exempts from it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils import _pytree as pytree

from drlpp.capturing.aten import EXEMPT_FROM_AUTOCAST
from drlpp.runtime.device.devices import CPU, device_among
from drlpp.runtime.stage.passes.randomness import seeded
from drlpp.schedule.method import Precision


def passes_in(precision: Precision, device: torch.device = CPU) -> torch.autocast:
    """Run the operators inside in this precision."""
    reduced = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(device.type, reduced, enabled=precision != "float32")


def without_autocast(*call: Any, **kwargs: Any) -> Any:
    """Call an operator in the types of its arguments.

    Args:
        call: the operator and its arguments; before it the name that :func:`seeded` takes, if it
            draws random numbers.
        kwargs: further arguments.
    """
    values = pytree.tree_leaves((call, kwargs))
    if has_torch_function(values):
        # A graph is traced anew where it is loaded: this call has to stay in it.
        return handle_torch_function(without_autocast, values, *call, **kwargs)
    first, *rest = call
    with torch.autocast(device_among(values).type, enabled=False):
        return seeded(*call, **kwargs) if isinstance(first, str) else first(*rest, **kwargs)


def exempt_operators(module: fx.GraphModule) -> None:
    """Let operators of ``autocast(enabled=False)`` regions go through :func:`without_autocast`."""
    for node in module.graph.nodes:
        if not node.meta.get(EXEMPT_FROM_AUTOCAST):
            continue
        if isinstance(node.target, OpOverload):
            node.args = (node.target, *node.args)
            node.target = without_autocast
        elif node.target is seeded:
            node.target = without_autocast
    module.recompile()
