"""From an exported program, whose weights are inputs, to a graph that reads them by name.

``ExportedProgram.module()`` gives the same nodes under the same names. But it also guards the
inputs of every call, and compares each weight's module with all modules next to it, so that its
time grows with the square of a model's width.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

_READ_LATER = ("val", "nn_module_stack")


class Unlifted(NamedTuple):
    """A graph and what its nodes name.

    Attributes:
        graph: calls modules and reads attributes of ``root``.
        root: holds the program's own tensors under their dotted names, constants without gradients.
        with_gradients: names of constants that required gradients.
    """

    graph: fx.Graph
    root: nn.Module
    with_gradients: list[str]


def unlift(program: ExportedProgram) -> Unlifted:
    """Turn the inputs that stand for weights, buffers and constants into reads of attributes.

    Args:
        program: its graphs lose what nobody reads of their nodes' ``meta``. Stack traces and the
            like take more memory than a graph.
    """
    _forget_origins(program.graph_module)
    # A copy names its nodes anew.
    graph = copy.deepcopy(program.graph)
    signature = program.graph_signature
    assert all(spec.kind is OutputKind.USER_OUTPUT for spec in signature.output_specs)
    tensors = {**program.constants, **program.state_dict}
    root = nn.Module()
    # Regions, such as those without gradients.
    for name, region in program.graph_module.named_children():
        root.add_module(name, region)
    with_gradients: list[str] = []
    placeholders = graph.find_nodes(op="placeholder")
    for spec, node in zip(signature.input_specs, placeholders, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            continue
        assert spec.target is not None
        tensor = tensors[spec.target]
        assert isinstance(tensor, Tensor)
        if spec.kind is InputKind.CONSTANT_TENSOR and tensor.requires_grad:
            with_gradients.append(spec.target)
            tensor = tensor.detach()
        hold(root, spec.target, tensor)
        with graph.inserting_after(node):
            read = graph.get_attr(spec.target)
        read.meta = node.meta
        node.replace_all_uses_with(read)
        graph.erase_node(node)
    graph.set_codegen(_calling_convention(program))
    return Unlifted(graph, root, with_gradients)


def _forget_origins(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.meta = {key: node.meta[key] for key in _READ_LATER if key in node.meta}


def hold(root: nn.Module, target: str, value: Tensor | nn.Module) -> None:
    """Put a tensor or module under a dotted name, with empty modules on the way."""
    *path, name = target.split(".")
    holder = root
    for part in path:
        if part not in holder._modules:
            setattr(holder, part, nn.Module())
        holder = holder.get_submodule(part)
    if isinstance(value, nn.Parameter | nn.Module):
        setattr(holder, name, value)
    else:
        holder.register_buffer(name, value)


def _calling_convention(program: ExportedProgram) -> fx.graph.CodeGen:
    """Return how to call the graph like the exported module.

    Arguments are given by name, and results have their structure.
    """
    signature = program.module_call_graph[0].signature
    assert signature is not None
    assert signature.forward_arg_names is not None
    in_spec, out_spec = signature.in_spec, signature.out_spec
    return fx.graph._PyTreeCodeGen(
        fx.graph._PyTreeInfo(signature.forward_arg_names, in_spec, out_spec)
    )
