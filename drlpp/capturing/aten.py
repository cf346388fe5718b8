"""What is to be known about single aten operators: type, views, writes, work."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

# Views are recognised by their schema; these copy or create, but do no arithmetic.
_FREE_OF_WORK = frozenset(
    {
        "_to_copy",
        "arange",
        "clone",
        "contiguous",
        "copy",
        "detach_copy",
        "empty",
        "empty_like",
        "expand_as",
        "eye",
        "flatten",
        "full",
        "full_like",
        "lift_fresh_copy",
        "linspace",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "reshape",
        "scalar_tensor",
        "to",
        "type_as",
        "view_as",
        "zeros",
        "zeros_like",
    }
)


def is_call(node: fx.Node) -> bool:
    """Whether ``node`` calls an aten operator or a captured ``torch.autograd.Function``."""
    return node.op in ("call_function", "call_module")


def operator_type(node: fx.Node) -> str:
    """The operator's name without namespace and overload, like ``conv2d``."""
    if node.op == "call_module":
        # A captured torch.autograd.Function: folder, class, number.
        return str(node.target).split(".")[-2]
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.split("::")[-1]
    return getattr(node.target, "__name__", str(node.target))


def owner(node: fx.Node) -> str:
    """The dotted name of the ``nn.Module`` that called ``node``; empty for the model itself."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    # A module that is called again has the number of the call behind an @.
    return re.sub(r"@\d+", "", stack[-1][0]) if stack else ""


def named_arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an aten operator by their names in its schema."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    names = [argument.name for argument in node.target._schema.arguments]
    return dict(zip(names, node.args, strict=False)) | node.kwargs


def nodes_in(value: object) -> list[fx.Node]:
    """The nodes in an argument, which may be a list."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, fx.Node)]


def viewed(node: fx.Node) -> list[fx.Node]:
    """The nodes whose storage the result of ``node`` may share."""
    if node.target is operator.getitem:
        return nodes_in(node.args[0])
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    # Which result shares with which argument does not matter, and lists do not say.
    if not any(result.alias_info for result in node.target._schema.returns):
        return []
    arguments = named_arguments(node)
    return [
        found
        for argument in node.target._schema.arguments
        if argument.alias_info
        for found in nodes_in(arguments.get(argument.name))
    ]


def written(node: fx.Node) -> list[fx.Node]:
    """The nodes whose storage ``node`` changes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = named_arguments(node)
    # The schema is silent about the running statistics that normalisation updates.
    normalising = arguments.get("training") is True or arguments.get("use_input_stats") is True
    changed = [
        *(["running_mean", "running_var"] if normalising else []),
        *(
            argument.name
            for argument in node.target._schema.arguments
            if argument.alias_info and argument.alias_info.is_write
        ),
    ]
    return [found for name in changed for found in nodes_in(arguments.get(name))]


def computes_nothing(node: fx.Node) -> bool:
    """Whether ``node`` only views, copies or creates: no operator that is worth placing."""
    if written(node):
        return False
    return bool(viewed(node)) or operator_type(node) in _FREE_OF_WORK


def is_tensor(node: fx.Node) -> bool:
    """Whether the result is one tensor, rather than several or a number."""
    return isinstance(node.meta.get("val"), Tensor)
