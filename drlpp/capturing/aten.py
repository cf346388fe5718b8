"""Facts about single aten operators: type, views, writes, work."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

EXEMPT_FROM_AUTOCAST = "exempt_from_autocast"
"""The key in the ``meta`` of nodes that a model runs with autocast disabled."""

# Views are recognised by their schema; these copy, do so where they cannot view, or create.
_FREE_OF_WORK = frozenset(
    [
        *("_to_copy", "clone", "contiguous", "copy", "detach_copy", "lift_fresh_copy", "to"),
        *("expand_as", "flatten", "reshape", "type_as", "view_as"),
        *("arange", "eye", "linspace", "scalar_tensor"),
        *("empty", "empty_like", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like"),
        *("new_empty", "new_full", "new_ones", "new_zeros"),
    ]
)

_MAY_NORMALISE = frozenset({"training", "use_input_stats"})


def is_call(node: fx.Node) -> bool:
    """Return whether ``node`` calls an aten operator."""
    return node.op == "call_function"


def operator_type(node: fx.Node) -> str:
    """Return the operator's name without namespace and overload, like ``conv2d``."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.split("::")[-1]
    return getattr(node.target, "__name__", str(node.target))


def owner(node: fx.Node) -> str:
    """Return the dotted name of the ``nn.Module`` that called ``node``; empty for the model."""
    called = calling_modules(node)
    return called[-1] if called else ""


def calling_modules(node: fx.Node) -> tuple[str, ...]:
    """Return the dotted names of the modules that called ``node``, from the model to its owner."""
    # A module that is called again has the number of the call behind an @.
    stack = node.meta.get("nn_module_stack", {}).values()
    return tuple(re.sub(r"@\d+", "", name) for name, *_ in stack)


class _Schema(NamedTuple):
    """Names of an operator's arguments: all, those that it changes, those that a result views."""

    names: tuple[str, ...]
    changed: tuple[str, ...]
    viewed: tuple[str, ...]


@functools.cache
def _schema(operator: torch._ops.OpOverload) -> _Schema:
    arguments = operator._schema.arguments
    # Which result shares with which argument does not matter, and lists do not say.
    views = any(result.alias_info for result in operator._schema.returns)
    return _Schema(
        names=tuple(a.name for a in arguments),
        changed=tuple(a.name for a in arguments if a.alias_info and a.alias_info.is_write),
        viewed=tuple(a.name for a in arguments if a.alias_info and views),
    )


def named_arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of an aten operator by their names in its schema."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    return named(node.target, node.args, node.kwargs)


def named(
    operator: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what an aten operator is called with by the names in its schema."""
    return dict(zip(_schema(operator).names, args, strict=False)) | dict(kwargs)


def nodes_in(value: object) -> list[fx.Node]:
    """Return the nodes in an argument, which may be a list."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, fx.Node)]


def viewed(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose storage the result of ``node`` may share."""
    if node.target is operator.getitem:
        return nodes_in(node.args[0])
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    names = _schema(node.target).viewed
    arguments = named_arguments(node) if names else {}
    return [found for name in names for found in nodes_in(arguments.get(name))]


def storage_owner(node: fx.Node, owners: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Return the node that made the storage in which the result of ``node`` may lie.

    Args:
        node: any node of a graph.
        owners: that node for every earlier node.
    """
    seen = viewed(node)
    if not seen:
        return node
    found = owners[seen[0]]
    # Results of one operator, like an LSTM's, are separate; parts of a split are not.
    return node if node.target is operator.getitem and found is seen[0] else found


def written(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose storage ``node`` changes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    schema = _schema(node.target)
    if not schema.changed and _MAY_NORMALISE.isdisjoint(schema.names):
        return []
    arguments = named_arguments(node)
    # The schema is silent about the running statistics that normalisation updates.
    normalising = any(arguments.get(name) is True for name in _MAY_NORMALISE)
    changed = [*(["running_mean", "running_var"] if normalising else []), *schema.changed]
    return [found for name in changed for found in nodes_in(arguments.get(name))]


def computes_nothing(node: fx.Node) -> bool:
    """Return whether ``node`` only views, copies or creates, and so is not worth placing."""
    if written(node):
        return False
    return bool(viewed(node)) or operator_type(node) in _FREE_OF_WORK


def is_tensor(node: fx.Node) -> bool:
    """Return whether the result is one tensor, rather than several or a number."""
    return isinstance(node.meta.get("val"), Tensor)


def returned_nodes(module: fx.GraphModule) -> list[fx.Node]:
    """Return the nodes of the tensors that a graph returns, flat."""
    return nodes_in(module.graph.output_node().args)
