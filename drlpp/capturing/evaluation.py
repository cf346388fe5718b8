"""The graph that evaluates a model, made from the one that trains it, and a check of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from drlpp.capturing.aten import named_arguments, operator_type, written
from drlpp.capturing.module_check import SameDraws, call_purely, differences, evaluating
from drlpp.errors import InvalidModel
from drlpp.specs.batches import Batch

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel


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
            switched = _switch(node)
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


_IN_EVALUATION: dict[str, bool | float] = {
    "train": False,
    "training": False,
    "use_input_stats": False,
    "dropout_p": 0.0,
}


def _switch(node: fx.Node) -> bool:
    """Set the arguments of ``node`` that are different in evaluation; return whether it has any."""
    assert isinstance(node.target, torch._ops.OpOverload)
    given = named_arguments(node)
    if given.get("running_mean", node) is None:
        # Without running statistics a normalisation uses the minibatch's in evaluation as well.
        return False
    switched = _IN_EVALUATION.keys() & given.keys()
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.name in switched and index < len(node.args):
            node.update_arg(index, _IN_EVALUATION[argument.name])
        elif argument.name in switched:
            node.update_kwarg(argument.name, _IN_EVALUATION[argument.name])
    return bool(switched)


def check_evaluation(captured: CapturedModel, graph: fx.GraphModule) -> None:
    """Compare the outputs of the graph that evaluates with those of the module in evaluation mode.

    Outputs of another number or shape are not compared: some models return less in evaluation,
    such as no auxiliary heads, and the graph returns what training needs.

    Raises:
        InvalidModel: they differ.
    """
    task, module = captured.task, captured.task.module
    if any(weight.is_meta for weight in module.parameters()):
        return
    with evaluating(module):
        expected = _outputs(module, task.inputs)
    found = _outputs(graph, task.inputs)
    if [value.shape for value in expected] != [value.shape for value in found]:
        return
    named = [{str(i): value for i, value in enumerate(values)} for values in (expected, found)]
    if differing := differences(named[0], named[1]):
        raise InvalidModel(
            f"model {captured.reference} cannot be evaluated in a pipeline: in evaluation mode its "
            f"module gives other outputs (relative difference {max(differing.values()):.2g}). Only "
            "dropout and normalisation are switched in a captured graph; what else depends on "
            "self.training stays as in training. Write it with these, or train without held-out "
            "data and evaluate the module itself"
        )


def _outputs(module: nn.Module, inputs: Batch) -> list[Tensor]:
    with torch.no_grad(), SameDraws():
        leaves = pytree.tree_leaves(call_purely(module, inputs))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
