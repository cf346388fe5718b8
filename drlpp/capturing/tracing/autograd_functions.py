"""A user's ``torch.autograd.Function`` as two aten graphs, so that it keeps its own backward.

Workers never import a user's code. What such a Function computes, forward and backward, is traced
once where the model is captured (:mod:`drlpp.capturing.tracing.function_capture`) and travels as
data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn


class CapturedFunction(nn.Module):
    """A module called like the Function, with tensor arguments alone; the graphs hold the rest.

    Args:
        compute: the forward, from the tensor arguments to the outputs and then the tensors that
            are kept for the backward.
        differentiate: the backward, from the kept tensors and the gradients of the outputs to
            those of the tensor arguments, with None for an argument that has none.
        strides: of the tensor arguments where the graphs were traced; they rely on them.
        outputs: how many there are.
        not_differentiable: indices of outputs that are marked so.
        returns_tuple: whether the result is a tuple; otherwise it is the only output.

    Attributes:
        autocast: whether the forward follows the autocast around it.
    """

    def __init__(
        self,
        compute: fx.GraphModule,
        differentiate: fx.GraphModule,
        strides: Sequence[tuple[int, ...]],
        outputs: int,
        not_differentiable: frozenset[int],
        returns_tuple: bool,
    ) -> None:
        super().__init__()
        self.compute = compute
        self.differentiate = differentiate
        self.strides = tuple(strides)
        self.outputs = outputs
        self.not_differentiable = not_differentiable
        self.returns_tuple = returns_tuple
        self.autocast = True

    def forward(self, *arguments: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the outputs, which know the Function's own backward."""
        if self.autocast:
            results = _Apply.apply(self, *arguments)
        else:
            with torch.autocast(arguments[0].device.type, enabled=False):
                results = _Apply.apply(self, *arguments)
        return results if self.returns_tuple else results[0]


class _Apply(torch.autograd.Function):
    """What connects the two graphs with autograd."""

    @staticmethod
    def forward(ctx: Any, function: CapturedFunction, *arguments: Tensor) -> tuple[Tensor, ...]:
        given = map(_with_strides, arguments, function.strides)
        results = function.compute(*given)
        outputs = results[: function.outputs]
        ctx.function = function
        ctx.save_for_backward(*results[function.outputs :])
        ctx.mark_non_differentiable(*(outputs[i] for i in sorted(function.not_differentiable)))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        contiguous = (gradient.contiguous() for gradient in gradients)
        with torch.no_grad():
            found = ctx.function.differentiate(*ctx.saved_tensors, *contiguous)
        return None, *found


def _with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    if tensor.stride() == strides:
        return tensor
    return torch.empty_strided(
        tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
