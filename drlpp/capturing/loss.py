"""Loss and score: captured as graphs of the tensors that a model returns and of the targets.

A loss has to be a mean over samples, since gradients of microbatches, replicas and accumulated
minibatches are averaged. Of a sum, M parts would leave 1/M of what plain PyTorch's backward gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from drlpp.capturing.aten import returned_nodes
from drlpp.capturing.export import export_graph
from drlpp.capturing.module_check import call_purely, evaluating, tolerance
from drlpp.capturing.refusals import refuse_unsupported
from drlpp.errors import InvalidModel
from drlpp.models.task import Task
from drlpp.specs.batches import Batch, chosen, tensors_in

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel
    from drlpp.models.model_reference import ModelReference


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
    """Return the loss that a model returns, or the mean square of all floating-point outputs."""
    if (loss := own_loss(outputs)) is not None:
        return loss
    values = [value for value in pytree.tree_leaves(outputs) if isinstance(value, Tensor)]
    values = [value for value in values if value.is_floating_point()]
    squares = [value.square().sum() for value in values]
    return torch.stack(squares).sum() / sum(value.numel() for value in values)


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


def check_no_sum(captured: CapturedModel, loss: Callable[[Any, Batch], Tensor]) -> None:
    """Compare the loss of the example minibatch with those of its two parts.

    The parts are its halves, and if these look like a sum, a third and the rest too: the logarithm
    of 4, a loss that compares samples with each other, is by chance twice that of 2.

    Args:
        captured: the model; nothing of it is changed.
        loss: the task's or the module's own, in Python.

    Raises:
        InvalidModel: it is a sum. A loss that cannot be computed of a part is let pass.
    """
    task = captured.task
    size = task.batch_size
    if size < 2 or any(weight.is_meta for weight in task.module.parameters()):
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            cuts = (size // 2, max(size // 3, 1))
            summed = all(_is_sum(*_losses(task, loss, at)) for at in cuts)
    except Exception:
        # Model or loss is for minibatches of this size alone.
        return
    if summed:
        raise InvalidModel(
            f"the loss of {captured.reference} is a sum over samples: that of its example "
            "minibatch is the sum of those of its parts. It has to be a mean, since the gradients "
            "of microbatches, replicas and accumulated minibatches are averaged; give it "
            'reduction="mean", or divide it by the number of samples that it is called with, not '
            "by a constant. Gradients are then smaller by that factor, so SGD's learning rate has "
            "to be larger"
        )


def _losses(task: Task, loss: Callable[[Any, Batch], Tensor], at: int) -> list[Tensor]:
    """Return the losses of the minibatch, of its first ``at`` samples, and of the others."""
    parts = slice(None), slice(at), slice(at, None)
    outputs = call_purely(task.module, task.inputs)
    leaves = pytree.tree_leaves(outputs)
    if all(isinstance(one, Tensor) and one.shape[:1] == (task.batch_size,) for one in leaves):

        def of(samples: slice) -> Tensor:
            return loss(chosen(outputs, samples), chosen(task.targets, samples))

        return [of(part) for part in parts]

    def computed(samples: slice) -> Tensor:
        given = call_purely(task.module, chosen(task.inputs, samples))
        return loss(given, chosen(task.targets, samples))

    # Such as a loss of the module's own. In training a sample's part of it may depend on the
    # others, by dropout and statistics of the batch.
    with evaluating(task.module):
        return [computed(part) for part in parts]


def _is_sum(whole: Tensor, first: Tensor, second: Tensor) -> bool:
    """Return whether a loss is the sum of its parts' and no mean of them, whatever their weights.

    A mean over the tokens that count lies between the parts' means, at one of them if all tokens
    are there.
    """
    total, one, other = (value.double().item() for value in (whole, first, second))
    larger, rounding = max(abs(one), abs(other)), tolerance(whole)
    if larger <= torch.finfo(whole.dtype).eps:
        return False
    beyond = max(total - max(one, other), min(one, other) - total)
    return abs(total - one - other) <= rounding * larger and beyond > _CLEARLY * rounding * larger


_CLEARLY = 4
"""How many times rounding a sum has to be away from the nearest mean."""
