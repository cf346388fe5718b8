"""The graph that evaluates a model, made from the one that trains it."""

from __future__ import annotations

import torch
from torch import fx

from drlpp.capturing.aten import named_arguments, operator_type, written
from drlpp.errors import InvalidModel


def evaluation_graph(module: fx.GraphModule) -> fx.GraphModule:
    """Copy a captured module as ``nn.Module.eval`` would have it, on the same parameters.

    Dropout lets everything pass, normalisation uses its running statistics and leaves them as
    they are. Nodes keep their names, so that the copy is cut as the original is.

    Raises:
        InvalidModel: if an operator that draws random numbers would still do so, since the
            graph does not tell whether the model draws them in training only.
    """
    # Weights are shared: only the graph is copied.
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    graph.set_codegen(module.graph._codegen)
    result = fx.GraphModule(module, graph)
    for node in reversed(list(result.graph.nodes)):
        if not node.users and any(target.op == "get_attr" for target in written(node)):
            result.graph.erase_node(node)
        elif isinstance(node.target, torch._ops.OpOverload):
            switched = _switches(node)
            _set_arguments(node, switched)
            random = torch.Tag.nondeterministic_seeded in node.target.tags
            # A call of attention without this argument drops nothing.
            quiet = any(known.name == "dropout_p" for known in node.target._schema.arguments)
            if random and not switched and not quiet:
                raise InvalidModel(
                    f"{operator_type(node)} ({node.name}) draws random numbers, and it is unknown "
                    "whether the model does so in training only; use nn.Dropout or "
                    "F.dropout(…, training=self.training) to evaluate it in a pipeline"
                )
    result.graph.eliminate_dead_code()
    result.recompile()
    return result


def _switches(node: fx.Node) -> dict[str, bool | float]:
    """Return the arguments of ``node`` that are different in evaluation."""
    arguments = named_arguments(node)
    values: dict[str, bool | float] = {
        "train": False,
        "training": False,
        "use_input_stats": False,
        "dropout_p": 0.0,
    }
    switched = {name: value for name, value in values.items() if name in arguments}
    if arguments.get("running_mean", node) is None:
        # Without running statistics a normalisation uses the minibatch's in evaluation as well.
        return {}
    return switched


def _set_arguments(node: fx.Node, switched: dict[str, bool | float]) -> None:
    assert isinstance(node.target, torch._ops.OpOverload)
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.name in switched:
            if index < len(node.args):
                node.update_arg(index, switched[argument.name])
            else:
                node.update_kwarg(argument.name, switched[argument.name])
