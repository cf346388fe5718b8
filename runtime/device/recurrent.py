"""Recurrent layers on a GPU, whose backward sees weights that were changed in place.

Many policies change weights in place between a forward and its backward, and autograd computes the
backward with what is in their memory then. cuDNN's recurrent layers read weights from one buffer,
which torch fills in the forward and keeps: its backward would have the forward's weights, whatever
the policy.

The operators here stand for torch's on workers with a GPU. They call cuDNN as torch does, but keep
the weights themselves and fill the buffer again in the backward, which copies them once more.
Dropout between layers is torch's own operator: a direct call of cuDNN would need the state of a
generator of its own. Under autocast torch's operators are called, since there a backward has copies
of any operator's weights, and policies that want newer ones recompute.
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


@dataclass(frozen=True)
class Layers:
    """Recurrent layers without dropout between them.

    Samples are ``(moments, batch, features)``, or ``(batch, moments, features)`` with
    ``batch_first``; the hidden state is ``(count * directions, batch, size)``, and of an LSTM there
    is a cell of this shape too, whose size is another one with projections.

    Attributes:
        kind: name of torch's operator.
        biases: whether layers have them.
        count: how many.
        bidirectional: whether each also reads from behind.
        batch_first: whether the batch is the first dimension.
    """

    kind: str
    biases: bool
    count: int
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        """How often a layer has weights."""
        return 2 if self.bidirectional else 1

    def by_torch(
        self, given: Tensor, hidden: Tensor, cell: Tensor | None, weights: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Call torch's own operator."""
        states = hidden if cell is None else [hidden, cell]
        dropout, train = 0.0, True
        directions = self.bidirectional, self.batch_first
        operator = getattr(aten, self.kind).input
        found: tuple[Tensor, ...] = operator(
            given, states, weights, self.biases, self.count, dropout, train, *directions
        )
        return found

    def for_cudnn(
        self, given: Tensor, hidden: Tensor, cell: Tensor | None, weights: Sequence[Tensor]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return what cuDNN's forward and backward begin with, and what they take behind that.

        The weights are those of now.
        """
        mode, size, projected = _MODES[self.kind], hidden.shape[-1], 0
        if cell is not None and cell.shape[-1] != size:
            size, projected = cell.shape[-1], size
        kinds = mode, size, projected, self.count, self.batch_first
        # With an LSTM's projection, if it has one.
        each = len(weights) // (self.count * self.directions)
        # The operator lets its arguments share the buffer's memory: these are not the weights.
        aliases = [weight.data.contiguous() for weight in weights]
        buffer = aten._cudnn_rnn_flatten_weight(
            aliases, each, given.shape[-1], *kinds, self.bidirectional
        )
        # As for training, so that a forward that is not trained on gives the same bits.
        dropout, train, batch_sizes, dropout_state = 0.0, True, (), None
        options = *kinds, dropout, train, self.bidirectional, batch_sizes, dropout_state
        return (given, weights, each, buffer, hidden, cell), options


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
        tensors, options = layers.for_cudnn(given, hidden, cell, weights)
        output, last_hidden, last_cell, reserve, _ = aten._cudnn_rnn(*tensors, *options)
        ctx.layers = layers
        ctx.save_for_backward(given, hidden, cell, output, reserve, *weights)
        return (output, last_hidden) if cell is None else (output, last_hidden, last_cell)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_output: Tensor, of_last_hidden: Tensor, of_last_cell: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        layers: Layers = ctx.layers
        given, hidden, cell, output, reserve, *weights = ctx.saved_tensors
        if torch._C._autograd._get_current_graph_task_keep_graph():
            # cuDNN writes into it, and this is not the last backward.
            reserve = reserve.clone()
        _, wants_given, wants_hidden, wants_cell, *wants_weights = ctx.needs_input_grad
        tensors, options = layers.for_cudnn(given, hidden, cell, weights)
        gradients = output, of_output, of_last_hidden, of_last_cell
        wanted = wants_given, wants_hidden, wants_cell, any(wants_weights)
        of_given, of_hidden, of_cell, of_weights = aten._cudnn_rnn_backward(
            *tensors, *gradients, *options, reserve, wanted
        )
        return (
            None,
            of_given if wants_given else None,
            of_hidden if wants_hidden else None,
            of_cell if wants_cell else None,
            *(of_weights if any(wants_weights) else [None] * len(weights)),
        )


def _run(
    layers: Layers,
    given: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    weights: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Return the output of layers, the last hidden states, and the last cells of an LSTM."""
    if torch.is_autocast_enabled("cuda"):
        return layers.by_torch(given, hidden, cell, weights)
    if not torch.cudnn_is_acceptable(given):
        with torch.backends.cudnn.flags(enabled=False):
            return layers.by_torch(given, hidden, cell, weights)
    cell = None if cell is None else cell.contiguous()
    found: tuple[Tensor, ...] = _Recurrent.apply(layers, given, hidden.contiguous(), cell, *weights)
    return found


def _run_with_dropout(
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
    """Do what torch's operator of that kind does; the other arguments are its own."""
    hidden, cell = (state, None) if isinstance(state, Tensor) else state
    layers = Layers(kind, biases, count, bidirectional, batch_first)
    if not (dropout and train and count > 1):
        return _run(layers, given, hidden, cell, weights)
    one, each, rows = replace(layers, count=1), len(weights) // count, layers.directions
    last_hidden: list[Tensor] = []
    last_cell: list[Tensor] = []
    for number in range(count):
        if number:
            given = F.dropout(given, dropout)
        of_layer = slice(number * rows, (number + 1) * rows)
        given, *last = _run(
            one,
            given,
            hidden[of_layer],
            None if cell is None else cell[of_layer],
            weights[number * each : (number + 1) * each],
        )
        last_hidden.append(last[0])
        last_cell += last[1:]
    if cell is None:
        return given, torch.cat(last_hidden)
    return given, torch.cat(last_hidden), torch.cat(last_cell)


_LIBRARY = torch.library.Library("drlpp_gpu", "DEF")
ON_GPU: dict[OpOverload, OpOverload] = {}
"""What stands for which of torch's operators. Those for packed sequences cannot be captured."""

for _kind in _MODES:
    _operator = getattr(aten, _kind).input
    _LIBRARY.define(str(_operator._schema).removeprefix("aten::"))
    _LIBRARY.impl(f"{_kind}.input", partial(_run_with_dropout, _kind), "CompositeImplicitAutograd")
    ON_GPU[_operator] = getattr(torch.ops.drlpp_gpu, _kind).input
