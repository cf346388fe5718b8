"""A check that a captured model and the user's module compute the same, gradients included.

torch.export sees a forward alone, in training mode. What it is known to drop is refused by name
(:mod:`drlpp.capturing.refusals`); here both are run on the example inputs and compared,
whatever the cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from drlpp.errors import InvalidModel
from drlpp.specs.batches import Batch, as_arguments, tensors_in

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel

_RELATIVE = 1e-3
"""Part of a gradient's norm.

It is far more than the order of additions changes, and far less than an operator.
"""

_OF_LARGEST = 1e-5
"""Part of the largest gradient's norm: what rounding leaves where a gradient is zero."""


class SameDraws(TorchDispatchMode):
    """Every random operator draws the same numbers, whichever have been drawn before."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.default_generator.manual_seed(0)
        return func(*args, **(kwargs or {}))


def check_gradients(captured: CapturedModel, loss: Callable[[Any, Batch], Tensor]) -> None:
    """Compare the loss and all gradients of the graph with those of the module.

    Args:
        captured: the model; nothing of it is changed, running statistics included.
        loss: the module's, in Python.

    Raises:
        InvalidModel: they differ; it names the parameter that differs most. Also if the module
            cannot be run on its example inputs.
    """
    task, module = captured.task, captured.task.module
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained or any(p.is_meta for p in trained.values()):
        return

    def of_module() -> Tensor:
        return loss(call_purely(module, task.inputs), task.targets)

    def of_graph() -> Tensor:
        leaves = pytree.tree_leaves(call_purely(captured.module, task.inputs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        value: Tensor = captured.loss(*tensors, *tensors_in(task.targets))
        return value

    try:
        expected = _gradients(of_module, trained)
    except Exception as error:
        raise InvalidModel(
            f"model {captured.reference} cannot be trained: forward and backward on its example "
            f"inputs raise {type(error).__name__}: {error}"
        ) from error
    if all(expected[name] is None for name in trained):
        raise InvalidModel(
            f"model {captured.reference} cannot be trained: its loss has a gradient for none of "
            f"its {len(trained)} parameters; look for detach() and no_grad() in the loss and the "
            "model"
        )
    differing = differences(expected, _gradients(of_graph, trained))
    if not differing:
        return
    if differences(expected, _gradients(of_module, trained)):
        raise InvalidModel(
            f"model {captured.reference} cannot be captured: run twice on the same inputs, with "
            "the same random numbers of torch, it gives different gradients; look for other "
            "random numbers, or state that a call leaves for the next"
        )
    worst = max(differing, key=lambda name: differing[name])
    raise InvalidModel(
        f"model {captured.reference} cannot be captured: the graph of its operators gives another "
        f"{'loss' if worst == _LOSS else f'gradient of {worst}'} than the module itself (relative "
        f"difference {differing[worst]:.2g}; {len(differing)} of {len(expected)} values differ). "
        "Something in the model changes gradients where torch.export does not see it"
    )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a user's module into evaluation mode, and undo that."""
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        yield
    finally:
        for part, training in modes.items():
            part.training = training


_LOSS = "the loss"


def call_purely(module: nn.Module, inputs: Batch) -> Any:
    """Return what ``module`` returns, and leave its buffers and torch's generator as they are.

    The module works on copies of its buffers and inputs.
    """
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    inputs = pytree.tree_map_only(Tensor, torch.clone, inputs)
    with torch.random.fork_rng(devices=[]):
        return functional_call(module, buffers, *as_arguments(inputs))


def _gradients(
    loss: Callable[[], Tensor], trained: Mapping[str, nn.Parameter]
) -> dict[str, Tensor | None]:
    """Return the loss and the gradients of ``backward``; those that parameters hold stay theirs."""
    held = {name: weight.grad for name, weight in trained.items()}
    for weight in trained.values():
        weight.grad = None
    try:
        # The loss and the backward, which may recompute, draw numbers as well.
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), SameDraws():
            value = loss()
            if value.requires_grad:
                value.backward()
        return {_LOSS: value.detach(), **{name: w.grad for name, w in trained.items()}}
    finally:
        for name, weight in trained.items():
            weight.grad = held[name]


def differences(
    expected: Mapping[str, Tensor | None], found: Mapping[str, Tensor | None]
) -> dict[str, float]:
    """Return the values that differ by more than rounding, and by how much of their norm."""
    norms = {name: _norm(value) for name, value in expected.items()}
    largest = max((n for name, n in norms.items() if name != _LOSS and n < math.inf), default=0.0)
    differing = {}
    for name, value in expected.items():
        difference = _distance(value, found[name])
        allowed = tolerance(value) * norms[name] + _OF_LARGEST * largest
        if difference > allowed:
            differing[name] = difference / norms[name] if norms[name] else math.inf
    return differing


def tolerance(value: Tensor | None) -> float:
    """Return the part of a value that rounding may change."""
    if value is None or not (value.is_floating_point() or value.is_complex()):
        return _RELATIVE
    return max(_RELATIVE, 8 * torch.finfo(value.dtype).eps)


def _norm(value: Tensor | None) -> float:
    return 0.0 if value is None else float(torch.linalg.vector_norm(_in_double(value)))


def _distance(expected: Tensor | None, found: Tensor | None) -> float:
    if expected is None or found is None:
        return _norm(found if expected is None else expected)
    if torch.equal(expected, found):
        return 0.0
    # Numbers that are finite in neither are no difference.
    difference = (_in_double(expected) - _in_double(found)).nan_to_num(0.0, 0.0, 0.0)
    same = torch.isfinite(expected) == torch.isfinite(found)
    return _norm(difference) if same.all() else math.inf


def _in_double(value: Tensor) -> Tensor:
    return torch.view_as_real(value).double() if value.is_complex() else value.double()
