"""From an exported program, whose weights are inputs, to a graph that reads them by name.

``ExportedProgram.module()`` gives the same nodes under the same names. But it also guards the
inputs of every call, and compares each weight's module with all modules next to it, so that its
time grows with the square of a model's width.
"""

from __future__ import annotations

import copy

from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

_READ_LATER = ("val", "nn_module_stack")


def unlift(program: ExportedProgram) -> tuple[fx.GraphModule, list[str]]:
    """Turn the inputs that stand for weights, buffers and constants into reads of attributes.

    Args:
        program: its graphs lose what nobody reads of their nodes' ``meta``. Stack traces and the
            like take more memory than a graph.

    Returns:
        A module that holds the program's own tensors under their dotted names, constants without
        gradients; and the names of constants that wanted one.
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
    wanting: list[str] = []
    placeholders = graph.find_nodes(op="placeholder")
    for spec, node in zip(signature.input_specs, placeholders, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            continue
        assert spec.target is not None
        tensor = tensors[spec.target]
        assert isinstance(tensor, Tensor)
        if spec.kind is InputKind.CONSTANT_TENSOR and tensor.requires_grad:
            wanting.append(spec.target)
            tensor = tensor.detach()
        _hold(root, spec.target, tensor)
        with graph.inserting_after(node):
            read = graph.get_attr(spec.target)
        read.meta = node.meta
        node.replace_all_uses_with(read)
        graph.erase_node(node)
    graph.set_codegen(_calling_convention(program))
    return fx.GraphModule(root, graph), wanting


def _forget_origins(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.meta = {key: node.meta[key] for key in _READ_LATER if key in node.meta}


def _hold(root: nn.Module, target: str, tensor: Tensor) -> None:
    *path, name = target.split(".")
    holder = root
    for part in path:
        if part not in holder._modules:
            setattr(holder, part, nn.Module())
        holder = holder.get_submodule(part)
    if isinstance(tensor, nn.Parameter):
        setattr(holder, name, tensor)
    else:
        holder.register_buffer(name, tensor)


def _calling_convention(program: ExportedProgram) -> fx.graph.CodeGen:
    """That of the exported module: its arguments by name, its results in their structure."""
    signature = program.module_call_graph[0].signature
    assert signature is not None
    assert signature.forward_arg_names is not None
    in_spec, out_spec = signature.in_spec, signature.out_spec
    return fx.graph._PyTreeCodeGen(
        fx.graph._PyTreeInfo(signature.forward_arg_names, in_spec, out_spec)
    )
