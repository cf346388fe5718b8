"""How many classes targets may name, where the loss tells: it is a cross entropy over them.

A class that is not there is an error deep in a worker, or none on a GPU. It is told of the data
instead, before a worker reads them, wherever the graph of the loss leads from the targets to a
cross entropy without another operation than to rearrange them. Any other loss is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from drlpp.capturing.aten import named_arguments, operator_type
from drlpp.specs.batches import Batch, tensors_in
from drlpp.specs.data import Samples, kinds_of

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel

_OVER_CLASSES = ("cross_entropy_loss", "nll_loss_nd", "nll_loss", "nll_loss2d")
_REARRANGING = {"alias", "clone", "contiguous", "detach", "flatten", "permute", "reshape", "select"}
_REARRANGING |= {"slice", "squeeze", "t", "to", "transpose", "unflatten", "unsqueeze", "view"}
_IGNORED = -100
"""What torch's losses ignore by default."""


@dataclass(frozen=True)
class Classes:
    """The classes of one cross entropy in a loss.

    Attributes:
        count: of the classes.
        ignored: the target that counts for nothing.
        rearranged: called with the tensors of the targets of a whole minibatch, it gives the
            classes that the cross entropy reads.
    """

    count: int
    ignored: int
    rearranged: fx.GraphModule

    def first_wrong(self, targets: Sequence[Tensor]) -> tuple[int, int] | None:
        """Return the first sample whose target is no class, and that target.

        Args:
            targets: of a whole minibatch.
        """
        found = self.rearranged(*targets)
        wrong = ((found < 0) | (found >= self.count)) & (found != self.ignored)
        if not wrong.any():
            return None
        # Numbers of samples go the same way as their targets.
        numbers = [
            torch.arange(len(one), device=one.device)
            .view(-1, *[1] * (one.dim() - 1))
            .expand_as(one)
            for one in targets
        ]
        return int(self.rearranged(*numbers)[wrong][0]), int(found[wrong][0])


def classes_in(loss: fx.GraphModule, targets: Batch) -> tuple[Classes, ...]:
    """Return the classes of the cross entropies in a captured loss.

    Args:
        loss: called with the tensors of the outputs, and those of the targets.
        targets: of the example minibatch.
    """
    given = loss.graph.find_nodes(op="placeholder")[-len(tensors_in(targets)) :]
    return tuple(_found(loss, given))


def wrong_target(captured: CapturedModel, samples: Samples) -> str | None:
    """Return what is wrong with the first sample whose target is no class, None if all are.

    Args:
        captured: the model with its loss.
        samples: any number, in one of the model's shapes.
    """
    found = kinds_of(samples)
    for of_shape in captured.in_all_shapes:
        task = of_shape.task
        if kinds_of((task.inputs, task.targets)) == found:
            return wrong_class(of_shape.classes, samples.targets, task.batch_size)
    return None


def wrong_class(classes: Sequence[Classes], targets: Batch, batch_size: int) -> str | None:
    """Return what is wrong with the first sample whose target is no class, None if all are.

    Args:
        classes: of the loss.
        targets: of any number of samples.
        batch_size: of the minibatch that the loss was captured with.
    """
    tensors = tensors_in(targets)
    if not classes or all(_are_all(classes, tensor) for tensor in tensors):
        return None
    for begin in range(0, len(tensors[0]), batch_size):
        part = [_filled(tensor[begin : begin + batch_size], batch_size) for tensor in tensors]
        for one in classes:
            if wrong := one.first_wrong(part):
                sample, target = begin + wrong[0], wrong[1]
                return (
                    f"the target of sample {sample} (counted from 0) is class {target}, but the "
                    f"loss is a cross entropy over {one.count} classes, 0 to {one.count - 1}, and "
                    f"ignores {one.ignored}"
                )
    return None


def _are_all(classes: Sequence[Classes], tensor: Tensor) -> bool:
    """Return whether whatever a cross entropy reads of a tensor is one of its classes."""
    if tensor.is_complex() or not tensor.numel():
        return False
    try:
        low, high = tensor.aminmax()
    except NotImplementedError:
        # Of uint16 and the like, which are no classes before the loss has turned them into int64.
        return False
    return bool(low >= 0) and bool(high < min(one.count for one in classes))


def _filled(tensor: Tensor, batch_size: int) -> Tensor:
    """Return a whole minibatch: the last sample again and again where some are missing."""
    missing = batch_size - len(tensor)
    return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])


def _found(loss: fx.GraphModule, given: Sequence[fx.Node]) -> Iterator[Classes]:
    for node in loss.graph.nodes:
        if node.op != "call_function" or operator_type(node) not in _OVER_CLASSES:
            continue
        arguments = named_arguments(node)
        scores, read = node.args[:2]
        assert isinstance(scores, fx.Node)
        assert isinstance(read, fx.Node)
        shape = scores.meta["val"].shape
        rearranged = _way(loss, given, read)
        if rearranged is not None and not read.meta["val"].is_floating_point():
            count = int(shape[0] if len(shape) == 1 else shape[1])
            yield Classes(count, arguments.get("ignore_index", _IGNORED), rearranged)


def _way(loss: fx.GraphModule, given: Sequence[fx.Node], read: fx.Node) -> fx.GraphModule | None:
    """Return what is done to the targets before they are read, None if it is more than rearrange.

    A class that a rearranging operation computes with, such as an index, is no way either.
    """
    steps = [read]
    while steps[-1] not in given:
        step = steps[-1]
        if step.op != "call_function" or operator_type(step) not in _REARRANGING:
            return None
        if len(step.all_input_nodes) != 1:
            return None
        steps.append(step.all_input_nodes[0])
    graph = fx.Graph()
    copies = {node: graph.node_copy(node) for node in given}
    for step in reversed(steps[:-1]):
        copies[step] = graph.node_copy(step, lambda node: copies[node])
    graph.output(copies[read])
    return fx.GraphModule(loss, graph)
