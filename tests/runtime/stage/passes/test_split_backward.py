"""The halves of a backward give what the whole gives, wherever weights join the way of inputs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call
from torch.nn import functional as F

from drlpp.runtime.stage.passes.split_backward import SplitBackward

Stage = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]


class Scaled(torch.autograd.Function):
    """x w²: Python holds its node, but not the graph behind it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w * w

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = gradients
        x, w = ctx.saved_tensors
        return gradient * w * w, (2 * gradient * x * w).sum(0)


def of_module(
    build: Callable[[], nn.Module], *shape: int, call: Callable[..., Any] = lambda m, x: m(x)
) -> tuple[Stage, list[Tensor], list[Tensor]]:
    module = build().double()

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Any:
            return call(self.inner, x)

    called = Called()
    names = [name for name, _ in called.named_parameters()]

    def stage(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Sequence[Tensor]:
        found = functional_call(called, dict(zip(names, weights, strict=True)), tuple(inputs))
        return [found] if isinstance(found, Tensor) else found

    return stage, [normal(*shape)], [p.detach() for p in called.parameters()]


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def affine(x: Tensor, *weights: Tensor) -> Tensor:
    return torch.tanh(F.linear(x, *weights))


CASES: dict[str, Callable[[], tuple[Stage, list[Tensor], list[Tensor]]]] = {
    "a chain": lambda: (
        lambda i, w: [affine(affine(i[0], w[0], w[1]), w[2])],
        [normal(4, 5)],
        [normal(5, 5), normal(5), normal(3, 5)],
    ),
    "a weight used twice in a row": lambda: (
        lambda i, w: [affine(affine(affine(i[0], w[0], w[1]), w[2]), w[0], w[1])],
        [normal(4, 5)],
        [normal(5, 5), normal(5), normal(5, 5)],
    ),
    "what is made of weights used twice": lambda: (
        lambda i, w: [(lambda u: torch.tanh(i[0] * u) * (2 * u))(w[0].sin())],
        [normal(4, 5)],
        [normal(5)],
    ),
    "an output of weights alone": lambda: (
        lambda i, w: [i[0] @ w[0], 3 * w[1] + w[0].sum(0)],
        [normal(4, 5)],
        [normal(5, 5), normal(5)],
    ),
    "nothing received": lambda: (
        lambda i, w: [torch.tanh(w[0]) @ w[1]],
        [],
        [normal(5, 5), normal(5)],
    ),
    "no weights": lambda: (lambda i, w: [torch.tanh(i[0])], [normal(4, 5)], []),
    "what nothing leads to": lambda: (
        lambda i, w: [affine(i[0], w[0])],
        [normal(4, 5), normal(3)],
        [normal(5, 5), normal(5)],
    ),
    "views among the outputs": lambda: (
        lambda i, w: affine(i[0], w[0]).chunk(5, dim=1),
        [normal(4, 5)],
        [normal(5, 5)],
    ),
    "an embedding of integers": lambda: (
        lambda i, w: [F.embedding(i[1], w[0]).sum(1) * i[0], i[1]],
        [normal(4, 5), torch.randint(0, 7, (4, 3))],
        [normal(7, 5)],
    ),
    "complex weights": lambda: (
        lambda i, w: [torch.fft.irfft(torch.fft.rfft(i[0]) * w[0], n=5)],
        [normal(4, 5)],
        [normal(3, dtype=torch.complex128)],
    ),
    "a custom function at the end": lambda: (
        lambda i, w: [Scaled.apply(affine(i[0], w[0]), w[1])],
        [normal(4, 5)],
        [normal(5, 5), normal(5)],
    ),
    "recurrence": lambda: of_module(
        lambda: nn.LSTM(5, 6, 2, batch_first=True),
        *(4, 7, 5),
        call=lambda lstm, x: (lambda out: (out[0], *out[1]))(lstm(x)),
    ),
    "convolution and normalisation": lambda: of_module(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten()
        ),
        *(2, 3, 8, 8),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_halves_give_the_bits_of_the_whole(name: str) -> None:
    torch.manual_seed(3)
    stage, inputs, weights = CASES[name]()
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    weights = [w.clone().requires_grad_() for w in weights]
    outputs = [output for output in stage(leaves, weights) if output.requires_grad]
    seeds = [torch.randn_like(output) for output in outputs]
    received = [leaf for leaf in leaves if leaf.requires_grad]
    whole = torch.autograd.grad(
        outputs, [*received, *weights], seeds, allow_unused=True, retain_graph=True
    )
    halves = SplitBackward(list(map(get_gradient_edge, outputs)), seeds, received, weights)
    # The graph is held by what is between the halves, not by the outputs.
    del outputs
    gc.collect()
    found = [*halves.of_received, *halves.of_weights()]
    for ours, theirs in zip(found, whole, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert torch.equal(ours, theirs)
    assert all(leaf.grad is None for leaf in (*received, *weights)), "nothing is written"
    assert all(leaf.requires_grad for leaf in received), "nothing is detached"


def test_the_first_half_computes_no_gradient_of_a_weight() -> None:
    """And the second none of what was received: counted in the operators that run."""
    from torch.utils.flop_counter import FlopCounterMode

    x = normal(8, 16).requires_grad_()
    weights = [normal(16, 16).requires_grad_() for _ in range(4)]
    y = x
    for weight in weights:
        y = affine(y, weight)
    with FlopCounterMode(display=False) as whole:
        torch.autograd.grad([y], [x, *weights], [torch.ones_like(y)], retain_graph=True)
    with FlopCounterMode(display=False) as first:
        halves = SplitBackward([get_gradient_edge(y)], [torch.ones_like(y)], [x], weights)
    with FlopCounterMode(display=False) as second:
        halves.of_weights()
    assert first.get_total_flops() == second.get_total_flops() == whole.get_total_flops() / 2 > 0
