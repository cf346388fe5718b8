"""What the tests of capture and folding share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from drlpp.capturing.aten import is_call
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.torch_versions import split_into_tuples

REFERENCE = ModelReference.named("tests:model")


def captured_from(module: nn.Module, *inputs: Tensor, **task: Any) -> CapturedModel:
    return capture(REFERENCE, Task(module, inputs, **task))


def types(captured: CapturedModel) -> list[str]:
    return [operator.type for operator in captured.graph.operators]


def run_in_pieces(captured: CapturedModel, *inputs: Tensor) -> list[Tensor]:
    """Run every operator alone, on copies of what the others gave it."""

    class Copying(fx.Interpreter):
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_module(target, pytree.tree_map(torch.clone, args), kwargs)

    whole = split_into_tuples(
        captured.module, captured.module, lambda node: captured.operator_of[node.name]
    )
    results = Copying(whole).run(*inputs, enable_io_processing=False)
    return pytree.tree_leaves(results)


def check_structure(captured: CapturedModel) -> None:
    """Every node is in an operator, and edges are the dependencies of the nodes, no more."""
    graph, operator_of = captured.graph, captured.operator_of
    nodes = [node for node in captured.module.graph.nodes if is_call(node)]
    assert {node.name for node in nodes} == operator_of.keys()
    assert set(operator_of.values()) == set(range(len(graph)))
    read = {
        (operator_of[source.name], operator_of[node.name], source.name)
        for node in nodes
        for source in node.all_input_nodes
        if is_call(source) and operator_of[source.name] != operator_of[node.name]
    }
    assert read == {
        (edge.source, edge.target, captured.output_nodes[edge.source, index])
        for edge in graph.edges
        for index in edge.outputs
    }
    values = {node.name: node.meta["val"] for node in nodes}
    for (operator, index), name in captured.output_nodes.items():
        assert operator_of[name] == operator
        assert graph.operators[operator].outputs[index].shape == tuple(values[name].shape)
    assert len({operator.name for operator in graph.operators}) == len(graph)


def gradients(module: nn.Module, loss: Tensor) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, list(module.parameters()), allow_unused=True))
