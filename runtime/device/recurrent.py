"""Recurrent layers on a GPU, whose backward sees weights that were changed in place.

Most policies change weights in place between a forward and its backward, and autograd computes the
backward with what is in their memory then. cuDNN's recurrent layers read weights from one buffer:
torch fills it in the forward, and computes the backward with that copy, whatever the weights are by
then. cuDNN also draws dropout between layers from a generator of its own, seeded once in a process:
a recomputed forward would draw other numbers.

The operators here stand for torch's on workers with a GPU. They keep the weights themselves, fill
the buffer again in the backward, and leave dropout between layers to torch. Under autocast torch's
own are called: there, a backward sees copies of any operator's weights (``drlpp.schedule.method``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

aten = torch.ops.aten

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cuDNN's numbers of the kinds of layers."""

_OF_CUDNN = (torch.float16, torch.float32, torch.float64)
"""The types in which torch gives layers to cuDNN in every release."""


@dataclass(frozen=True)
class Layers:
    """Recurrent layers without dropout between them, as cuDNN is asked for them.

    Attributes:
        kind: name of torch's operator.
        biases: whether layers have them.
        count: how many.
        bidirectional: whether each also reads from behind.
        batch_first: whether the samples are the first dimension.
        batch_sizes: of packed sequences, how many there are at every moment; empty of padded ones.
    """

    kind: str
    biases: bool
    count: int
    bidirectional: bool
    batch_first: bool
    batch_sizes: Sequence[int] = ()

    @property
    def directions(self) -> int:
        """How often a layer has weights."""
        return 2 if self.bidirectional else 1

    def weights_each(self, weights: Sequence[Tensor]) -> int:
        """Return how many weights a layer has in a direction, with LSTM's projection if it has."""
        return len(weights) // (self.count * self.directions)

    def call(self, given: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]) -> Any:
        """Call torch's own operator."""
        operator = getattr(aten, self.kind)
        states = list(state) if self.kind == "lstm" else state[0]
        rest = (list(weights), self.biases, self.count, 0.0, True, self.bidirectional)
        if self.batch_sizes:
            return operator.data(given, torch.tensor(self.batch_sizes), states, *rest)
        return operator.input(given, states, *rest, self.batch_first)

    def cudnn_arguments(self, hidden: Tensor, cell: Tensor | None) -> tuple[Any, ...]:
        """Return what all of cuDNN's functions take behind their tensors."""
        state, size = hidden.shape[-1], (hidden if cell is None else cell).shape[-1]
        projected = state if state != size else 0
        train, dropout, bidirectional = True, 0.0, self.bidirectional
        return (
            *(_MODES[self.kind], size, projected, self.count, self.batch_first, dropout),
            *(train, bidirectional, self.batch_sizes, None),
        )

    def buffer(
        self, weights: Sequence[Tensor], given: Tensor, hidden: Tensor, cell: Tensor | None
    ) -> Tensor:
        """Return a copy of the weights as cuDNN reads them."""
        mode, size, projected, count, batch_first, *_ = self.cudnn_arguments(hidden, cell)
        copies = [weight.detach().clone() for weight in weights]
        each, features = self.weights_each(weights), given.shape[-1]
        sizes = (features, mode, size, projected, count, batch_first, self.bidirectional)
        flat: Tensor = aten._cudnn_rnn_flatten_weight(copies, each, *sizes)
        return flat


class _Recurrent(torch.autograd.Function):
    """Layers whose backward uses the weights as they are then."""

    @staticmethod
    def forward(
        ctx: Any,
        layers: Layers,
        given: Tensor,
        hidden: Tensor,
        cell: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        flat = layers.buffer(weights, given, hidden, cell)
        output, last_hidden, last_cell, reserve, _ = aten._cudnn_rnn(
            given,
            weights,
            layers.weights_each(weights),
            flat,
            hidden,
            cell,
            *layers.cudnn_arguments(hidden, cell),
        )
        ctx.layers = layers
        ctx.save_for_backward(given, hidden, cell, output, reserve, *weights)
        return (output, last_hidden) if cell is None else (output, last_hidden, last_cell)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layers: Layers = ctx.layers
        given, hidden, cell, output, reserve, *weights = ctx.saved_tensors
        of_output, of_hidden, of_cell = (*gradients, None)[:3]
        _, wanted, wanted_hidden, wanted_cell, *wanted_weights = ctx.needs_input_grad
        of_given, of_first_hidden, of_first_cell, of_weights = aten._cudnn_rnn_backward(
            given,
            weights,
            layers.weights_each(weights),
            layers.buffer(weights, given, hidden, cell),
            hidden,
            cell,
            output,
            of_output,
            of_hidden,
            of_cell,
            *layers.cudnn_arguments(hidden, cell),
            reserve,
            (wanted, wanted_hidden, wanted_cell, any(wanted_weights)),
        )
        return (
            None,
            of_given if wanted else None,
            of_first_hidden if wanted_hidden else None,
            of_first_cell if wanted_cell else None,
            *(of_weights if any(wanted_weights) else [None] * len(weights)),
        )


def _run(layers: Layers, given: Tensor, state: Sequence[Tensor], weights: Sequence[Tensor]) -> Any:
    """Return the output of layers, and the last state of each, one or two tensors."""
    hidden, cell = (*(tensor.contiguous() for tensor in state), None)[:2]
    if torch.is_autocast_enabled("cuda"):
        return layers.call(given, state, weights)
    by_cudnn = given.is_cuda and torch.backends.cudnn.is_available()
    if not (by_cudnn and given.dtype in _OF_CUDNN):
        with torch.backends.cudnn.flags(enabled=False):
            return layers.call(given, state, weights)
    return _Recurrent.apply(layers, given, hidden, cell, *weights)


def _run_with_dropout(
    layers: Layers,
    dropout: float,
    given: Tensor,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Return the same of layers with dropout between them, as torch does it without cuDNN."""
    if not dropout or layers.count == 1:
        return tuple(_run(layers, given, state, weights))
    last: list[Sequence[Tensor]] = []
    each = len(weights) // layers.count
    for number in range(layers.count):
        if number:
            given = F.dropout(given, dropout)
        rows = slice(number * layers.directions, (number + 1) * layers.directions)
        own = [tensor[rows] for tensor in state]
        one = replace(layers, count=1)
        given, *states = _run(one, given, own, weights[number * each : (number + 1) * each])
        last.append(states)
    return (given, *(torch.cat(states) for states in zip(*last, strict=True)))


def _of_padded(
    kind: str,
    given: Tensor,
    state: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    layers = Layers(kind, biases, count, bidirectional, batch_first)
    states = [state] if isinstance(state, Tensor) else state
    return _run_with_dropout(layers, dropout * train, given, states, weights)


def _of_packed(
    kind: str,
    given: Tensor,
    batch_sizes: Tensor,
    state: Tensor | Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    layers = Layers(kind, biases, count, bidirectional, False, tuple(batch_sizes.tolist()))
    states = [state] if isinstance(state, Tensor) else state
    return _run_with_dropout(layers, dropout * train, given, states, weights)


_LIBRARY = torch.library.Library("drlpp_gpu", "DEF")
ON_GPU: dict[OpOverload, OpOverload] = {}
"""What stands for which of torch's operators."""

for _kind in _MODES:
    for _overload, _function in (("input", _of_padded), ("data", _of_packed)):
        _operator = getattr(getattr(aten, _kind), _overload)
        _LIBRARY.define(str(_operator._schema).removeprefix("aten::"))
        _LIBRARY.impl(
            f"{_kind}.{_overload}", partial(_function, _kind), "CompositeImplicitAutograd"
        )
        ON_GPU[_operator] = getattr(getattr(torch.ops.drlpp_gpu, _kind), _overload)
