"""Letting a captured graph work on another device than the one that it was captured on.

A model is captured on the processor. Operators that make tensors from nothing, such as masks,
ranges and zeros, name it in their arguments, and so do conversions; on a GPU these would be
tensors of the wrong device. And recurrent layers are those of ``drlpp.runtime.device.recurrent``
where cuDNN computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_aggregate


def move_graph_to_device(module: Callable[..., Any] | None, device: torch.device) -> None:
    """Let everything that a graph makes be on ``device``, and its constants too; in place."""
    if module is None or device.type == "cpu":
        return
    assert isinstance(module, fx.GraphModule)
    for graph in module.modules():
        # Also those of captured Functions, forward and backward.
        if isinstance(graph, fx.GraphModule):
            _retarget_graph(graph, device)
    module.to(device)


def _retarget_graph(module: fx.GraphModule, device: torch.device) -> None:
    replaced: dict[OpOverload, OpOverload] = {}
    if device.type == "cuda":
        # Workers on processors begin sooner without it.
        from drlpp.runtime.device.recurrent import ON_GPU

        replaced = ON_GPU

    def there(value: Any) -> Any:
        if isinstance(value, torch.device):
            return device
        return replaced.get(value, value) if isinstance(value, OpOverload) else value

    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        node.target = there(node.target)
        node.args = map_aggregate(node.args, there)
        node.kwargs = map_aggregate(node.kwargs, there)
        if _makes_tensors(node) and node.kwargs.get("device") is None:
            node.kwargs = {**node.kwargs, "device": device}
    module.recompile()


def _makes_tensors(node: fx.Node) -> bool:
    """Return whether an operator makes a tensor from none, by default on the processor.

    The runtime's own functions around an operator take it as an argument.
    """
    called = (node.target, *node.args[:2])
    operator = next((value for value in called if isinstance(value, OpOverload)), None)
    if operator is None:
        return False
    arguments = {argument.name: argument for argument in operator._schema.arguments}
    takes_tensors = any("Tensor" in str(argument.type) for argument in arguments.values())
    return "device" in arguments and not takes_tensors
