"""Capturing a model: its operators for planners and agents, its aten graph for the runtime."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, fx, nn

from drlpp.capturing.data_flow import refuse_changed_inputs
from drlpp.capturing.evaluation import check_evaluation, evaluation_graph
from drlpp.capturing.export import export_graph
from drlpp.capturing.folding import described, fold, tie_notes
from drlpp.capturing.graph import OpGraph
from drlpp.capturing.loss import (
    capture_loss,
    capture_score,
    check_no_sum,
    loss_of_outputs,
    returns_loss,
)
from drlpp.capturing.module_check import call_purely, check_gradients
from drlpp.capturing.refusals import refuse_unsupported
from drlpp.errors import InvalidInput, InvalidModel, ModelNote
from drlpp.models.model_reference import Model, ModelReference
from drlpp.models.task import Task, checked_task
from drlpp.specs.batches import chosen


@dataclass(frozen=True)
class CapturedModel:
    """A model as a graph of operators, and everything that is needed to run them.

    Attributes:
        reference: where the model comes from.
        graph: its operators.
        module: the same as an aten graph, called like the model. Its parameters and buffers are
            the model's own, under the same dotted names.
        operator_of: the operator of every node that calls something, by the node's name.
        output_nodes: the node of every tensor in ``Operator.outputs``, as (operator, index of
            the output) to the node's name.
        state: the model's ``state_dict``, detached; it shares memory with the model.
        constants: tensors that the graph reads and no ``state_dict`` holds (buffers that are not
            persistent, literals), by the name under which the graph reads them.
        aliases: for every further name of a tied parameter or buffer the one in the graph.
        task: the model, example inputs and targets. Without targets of its own they are an
            empty tensor ``(batch size, 0)``; its loss is the one that the model returns, if any.
        loss: called with the tensors that the model returns, flat and in pytree's order, and those
            of the targets. The mean square of all floating-point outputs if the task has no loss.
        score: called with the same; none if the task has none.
    """

    reference: ModelReference
    graph: OpGraph
    module: fx.GraphModule
    operator_of: Mapping[str, int]
    output_nodes: Mapping[tuple[int, int], str]
    state: dict[str, Tensor]
    constants: dict[str, Tensor]
    aliases: dict[str, str]
    task: Task
    loss: fx.GraphModule
    score: fx.GraphModule | None

    @property
    def trained(self) -> tuple[str, ...]:
        """The names of the parameters that are trained, a tied one's in the graph."""
        named = self.task.module.named_parameters(remove_duplicate=False)
        return tuple(name for name, w in named if w.requires_grad and name not in self.aliases)

    @property
    def task_with_loss(self) -> Task:
        """The task, with what stands in for a loss if it has none."""
        return self.task._replace(loss=self.task.loss or loss_of_outputs)

    @cached_property
    def evaluation(self) -> fx.GraphModule:
        """The graph that evaluates, with the same names of nodes.

        Raises:
            InvalidModel: it would not give what the module gives in evaluation mode.
        """
        graph = evaluation_graph(self.module)
        check_evaluation(self, graph)
        return graph

    def microbatch(self, microbatches: int) -> CapturedModel:
        """Return the same model, on the same parameters, for one of ``microbatches`` equal parts.

        It is captured once for every number; for 1 it is this one.

        Raises:
            InvalidInput: if the minibatch cannot be divided evenly.
            InvalidModel: if the graph depends on the batch size.
        """
        if microbatches == 1:
            return self
        if microbatches not in self._microbatches:
            self._microbatches[microbatches] = _capture_microbatch(self, microbatches)
        return self._microbatches[microbatches]

    @cached_property
    def _microbatches(self) -> dict[int, CapturedModel]:
        return {}


def capture(
    model: Model, task: Task | None = None, seed: int = 0, *, check: bool = True
) -> CapturedModel:
    """Capture a model with its loss.

    Warns (:class:`~drlpp.errors.ModelNote`) of what a user should know: operators that are one
    since a module uses a weight again and again, ``torch.utils.checkpoint``, which recomputes
    nothing in a pipeline, and a module without a parameter to train.

    Args:
        model: a :class:`Task`, a factory, or a reference to one (:meth:`ModelReference.of`).
        task: what the reference builds, if it has been built already; otherwise it is built with
            ``seed``.
        seed: of the initial weights.
        check: run the module and the graph on the example inputs, or on two samples of them where
            that is quicker though it takes another export, and compare the loss and all gradients.
            Also compare the loss with those of two parts of the minibatch.

    Raises:
        InvalidModel: if the model, the loss or the score cannot be captured, with the reason; also
            if the loss is a sum over the samples, no mean.
    """
    begin = time.perf_counter()
    captured, notes = _capture(ModelReference.of(model), task, seed)
    seconds = time.perf_counter() - begin
    if not captured.trained:
        notes.append(
            f"model {captured.reference} has no parameter that requires a gradient: it can be "
            "measured, but training it changes nothing; call module.requires_grad_() on what is "
            "to be trained"
        )
    for note in notes:
        warnings.warn(note, ModelNote, stacklevel=2)
    if check:
        _check(captured, seconds)
    return captured


def _capture(
    reference: ModelReference, task: Task | None, seed: int = 0
) -> tuple[CapturedModel, list[str]]:
    """Return a captured model, and notes about it for the user."""
    task = checked_task(reference.build(seed) if task is None else task, f"model {reference}")
    refuse_unsupported(task.module, f"model {reference}")
    if not task.module.training:
        raise InvalidModel(f"model {reference} is in evaluation mode; call module.train() first")
    if task.targets is None:
        task = task._replace(targets=torch.empty(task.batch_size, 0))
    module, notes = export_graph(task.module, task.inputs, f"model {reference}")
    refuse_changed_inputs(module, f"model {reference}")
    groups = fold(module)
    if not groups:
        raise InvalidModel(f"model {reference} computes nothing from its inputs")
    if task.loss is None and returns_loss(module):
        task = task._replace(loss=loss_of_outputs)
    buffers = dict(module.named_buffers(remove_duplicate=False))
    state = {
        name: value.detach()
        for name, value in task.module.state_dict().items()
        if isinstance(value, Tensor)
    }
    captured = CapturedModel(
        reference=reference,
        module=module,
        **described(str(reference), module, groups),
        state=state,
        constants={n: value.detach() for n, value in buffers.items() if n not in state},
        aliases=_aliases(task.module, module),
        task=task,
        loss=capture_loss(module, task, reference),
        score=capture_score(module, task, reference) if task.score else None,
    )
    return captured, [*notes, *tie_notes(module, groups)]


def _check(captured: CapturedModel, capture_seconds: float) -> None:
    """Compare gradients and parts of the loss, on two samples where the minibatch takes long."""
    task, few = captured.task, _samples(captured.task, 2)
    loss = task.loss or loss_of_outputs
    begin = time.perf_counter()
    # The model may be for minibatches of this size alone, or cannot be run at all.
    with contextlib.suppress(Exception), torch.no_grad():
        call_purely(task.module, few.inputs)
        forward_seconds = (time.perf_counter() - begin) * task.batch_size / 2
        # A forward and a backward, which takes two forwards, of the module and of the graph.
        spared_seconds = 6 * forward_seconds * (1 - 2 / task.batch_size)
        if forward_seconds > _LONG_FORWARD_SECONDS and spared_seconds > capture_seconds:
            captured, _ = _capture(captured.reference, few)
    check_gradients(captured, loss)
    if task.loss:
        check_no_sum(captured, loss)


_LONG_FORWARD_SECONDS = 1.0
"""If a forward takes no longer, whole minibatches are compared in any case."""


def _capture_microbatch(captured: CapturedModel, microbatches: int) -> CapturedModel:
    task = captured.task
    size = microbatch_size(task, microbatches)
    result, _ = _capture(captured.reference, _samples(task, size))
    if result.graph.fingerprint != captured.graph.fingerprint:
        raise InvalidModel(
            f"model {captured.reference} has another graph for {size} samples than for "
            f"{task.batch_size}; use schedules without microbatches for it"
        )
    return result


def _samples(task: Task, count: int) -> Task:
    """Return the task with its first samples only."""
    few = slice(count)
    inputs, targets = chosen(task.inputs, few), chosen(task.targets, few)
    return task._replace(inputs=inputs, targets=targets)


def microbatch_size(task: Task, microbatches: int) -> int:
    """Return the number of samples of a microbatch.

    Raises:
        InvalidInput: if the minibatch cannot be divided evenly.
    """
    if microbatches < 1 or task.batch_size % microbatches:
        raise InvalidInput(
            f"a minibatch of {task.batch_size} samples cannot be divided into {microbatches} equal "
            "microbatches; choose a number that divides it"
        )
    return task.batch_size // microbatches


def _aliases(model: nn.Module, module: fx.GraphModule) -> dict[str, str]:
    used = {node.target for node in module.graph.find_nodes(op="get_attr")}
    names: dict[Tensor, list[str]] = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, value in named(remove_duplicate=False):
            names.setdefault(value, []).append(name)
    aliases: dict[str, str] = {}
    for tied in names.values():
        canonical = next((name for name in tied if name in used), tied[0])
        aliases |= {name: canonical for name in tied if name != canonical}
    return aliases
