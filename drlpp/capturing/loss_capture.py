"""Capturing loss and score: graphs of the tensors that a model returns and of the targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from drlpp.capturing.tracing.export import export_graph
from drlpp.capturing.tracing.refusals import refuse_unsupported
from drlpp.errors import InvalidModel
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.specs.batches import Batch, tensors_in


def own_loss(outputs: Any) -> Tensor | None:
    """Return the loss among what a model returns, None if it returns none.

    It is a single floating-point number: the attribute or key ``loss``, the first of a tuple or
    list, or all that there is.
    """
    match outputs:
        case Mapping():
            found = outputs.get("loss")
        case Tensor():
            found = outputs
        case tuple() | list() if not hasattr(outputs, "loss"):
            found = outputs[0] if outputs else None
        case _:
            found = getattr(outputs, "loss", None)
    single = isinstance(found, Tensor) and not found.dim() and found.is_floating_point()
    return found if single else None


def loss_of_outputs(outputs: Any, targets: Batch) -> Tensor:
    """Return the loss that a model returns, or what stands in for one: the outputs' mean square.

    The mean is over all elements of all floating-point outputs.
    """
    if (loss := own_loss(outputs)) is not None:
        return loss
    values = [value for value in pytree.tree_leaves(outputs) if isinstance(value, Tensor)]
    values = [value for value in values if value.is_floating_point()]
    squares = [value.square().sum() for value in values]
    return torch.stack(squares).sum() / sum(value.numel() for value in values)


def returned_nodes(module: fx.GraphModule) -> list[fx.Node]:
    """Return the nodes of the tensors that a model returns, flat."""
    leaves = pytree.tree_leaves(module.graph.output_node().args)
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]


def _values_returned(module: fx.GraphModule) -> list[Any]:
    """Return the tensors that a model returns, flat and without values."""
    return [node.meta["val"] for node in returned_nodes(module)]


def _structured(module: fx.GraphModule, values: Sequence[Tensor]) -> Any:
    """Return the tensors that a model returns in the structure in which it returns them."""
    (leaves,) = module.graph.output_node().args
    codegen = module.graph._codegen
    assert isinstance(codegen, fx.graph._PyTreeCodeGen)
    assert codegen.pytree_info.out_spec is not None
    given = iter(values)
    found = [
        next(given) if isinstance(leaf, fx.Node) else leaf for leaf in pytree.tree_leaves(leaves)
    ]
    return pytree.tree_unflatten(found, codegen.pytree_info.out_spec)


def returns_loss(module: fx.GraphModule) -> bool:
    """Return whether a captured model returns its own loss."""
    return own_loss(_structured(module, _values_returned(module))) is not None


class _OnOutputs(nn.Module):
    """A loss or score as a module of the tensors that a model returns, and the targets' tensors."""

    def __init__(
        self, function: Callable[..., Tensor], module: fx.GraphModule, targets: Batch
    ) -> None:
        super().__init__()
        # A loss that is a module keeps its buffers, such as the weights of classes.
        self.function = function
        # In a tuple: torch would make a part of this module of the graph.
        self._module = (module,)
        self._targets = pytree.tree_structure(targets)

    def forward(self, *values: Tensor) -> Tensor:
        returned = len(values) - self._targets.num_leaves
        outputs = _structured(*self._module, values[:returned])
        return self.function(outputs, pytree.tree_unflatten(values[returned:], self._targets))


def capture_function(
    function: Callable[..., Tensor], module: fx.GraphModule, task: Task, what: str
) -> fx.GraphModule:
    """Capture a loss or a score, called with the model's flat outputs and the targets' tensors."""
    outputs = _values_returned(module)
    targets = [outputs[0].fake_mode.from_tensor(tensor) for tensor in tensors_in(task.targets)]
    taking = _OnOutputs(function, module, task.targets)
    refuse_unsupported(taking, f"the {what}")
    captured, _ = export_graph(taking, (*outputs, *targets), f"the {what}")
    results = returned_nodes(captured)
    if len(results) != 1:
        raise InvalidModel(f"the {what} has to return one tensor, not {len(results)}")
    if not isinstance(results[0].meta["val"], Tensor):
        raise InvalidModel(
            f"the {what} returns a number of Python's; return the tensor, without .item()"
        )
    # Plain arguments and one plain result: a worker needs nothing of the user's types.
    captured.graph.output_node().args = (results[0],)
    captured.graph.set_codegen(fx.graph.CodeGen())
    captured.recompile()
    return captured


def capture_loss(module: fx.GraphModule, task: Task, reference: ModelReference) -> fx.GraphModule:
    """Capture the loss of a task, or what stands in for it.

    Raises:
        InvalidModel: there is nothing to train, or it is not a single number.
    """
    if not any(node.meta["val"].is_floating_point() for node in returned_nodes(module)):
        raise InvalidModel(
            f"model {reference} returns no floating-point tensor, so there is nothing to train"
        )
    loss = task.loss or loss_of_outputs
    captured = capture_function(loss, module, task, f"loss of {reference}")
    value = returned_nodes(captured)[0].meta["val"]
    if value.dim() or not value.is_floating_point():
        raise InvalidModel(
            f"the loss of {reference} has shape {tuple(value.shape)} and type {value.dtype}; "
            "it has to be one floating-point number, the mean over the minibatch"
        )
    return captured


def capture_score(module: fx.GraphModule, task: Task, reference: ModelReference) -> fx.GraphModule:
    """Capture the score of a task, which has one.

    Raises:
        InvalidModel: it is one number, where each sample has to have its own.
    """
    assert task.score is not None
    captured = capture_function(task.score, module, task, f"score of {reference}")
    if not returned_nodes(captured)[0].meta["val"].dim():
        raise InvalidModel(
            f"the score of {reference} has shape (), expected one number for each of the "
            f"{task.batch_size} samples; their mean over all minibatches is taken for you"
        )
    return captured
