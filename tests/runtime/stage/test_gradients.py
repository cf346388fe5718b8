"""Summing gradients over replicas while the backward goes on: what is sent, when, and its sum."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from drlpp.runtime.stage.gradients import Gradients, SharedGradients
from drlpp.runtime.stage.stage_weights import clip


@dataclass
class _Sum:
    """Stands for the sum over replicas: notes what is sent, and adds what the others sent."""

    events: list[str]
    others: list[list[Tensor]] = field(default_factory=list)
    sent: list[Tensor] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    waited: int = 0

    def __call__(self, tensor: Tensor) -> Any:
        self.events.append(f"sum {len(self.sent)}")
        self.sent.append(tensor.clone())
        self.tensors.append(tensor)
        return _Work(self, len(self.sent) - 1)


@dataclass
class _Work:
    """The sum has arrived only when it has been waited for."""

    sum: _Sum
    number: int

    def wait(self) -> None:
        self.sum.waited += 1
        for other in self.sum.others:
            self.sum.tensors[self.number].add_(other[self.number])


class _Noted(torch.autograd.Function):
    """Passes on; notes when the backward comes by."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, events: list[str], name: str) -> Tensor:
        ctx.note = lambda: events.append(name)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        ctx.note()
        return gradient, None, None


def _weights(layers: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(3, 3, generator=generator, dtype=dtype).requires_grad_() for _ in range(layers)
    ]


def _loss(
    weights: Sequence[Tensor], seed: int, events: list[str], unreached: Sequence[int] = ()
) -> Tensor:
    """A chain of layers; the backward comes to layer i after "layer i" was noted."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(5, 3, generator=generator, dtype=torch.float64).to(weights[0].dtype)
    for index, weight in enumerate(weights):
        value = value @ (weight.detach() if index in unreached else weight)
        value = _Noted.apply(value, events, f"layer {index}")  # type: ignore[no-untyped-call]
    return value.abs().square().sum()


def _backward(
    gradients: SharedGradients, weights: Sequence[Tensor], loss: Tensor, *, last: bool
) -> list[Tensor | None]:
    """As a stage makes it; the gradients that autograd found."""
    with gradients.collecting(weights, last=last):
        gradients.add(
            torch.autograd.grad(loss, list(weights), retain_graph=True, allow_unused=True)
        )
    return list(torch.autograd.grad(loss, list(weights), allow_unused=True))


def _sum_of(lists: Sequence[Sequence[Tensor | None]]) -> list[Tensor | None]:
    sums = []
    for found in zip(*lists, strict=True):
        known = [value for value in found if value is not None]
        sums.append(sum(known[1:], known[0]) if known else None)
    return sums


def _assert_gradients(
    weights: Sequence[Tensor], wanted: Sequence[Tensor | None], rtol: float = 1e-12
) -> None:
    for weight, value in zip(weights, wanted, strict=True):
        if value is None:
            assert weight.grad is None
        else:
            assert weight.grad is not None
            torch.testing.assert_close(weight.grad, value, rtol=rtol, atol=0)


ONE_WEIGHT = 3 * 3 * 8


@pytest.mark.parametrize(("bucket_bytes", "buckets"), [(1, 4), (2 * ONE_WEIGHT, 2), (10**6, 1)])
def test_buckets_are_sent_in_order_as_soon_as_the_backward_has_passed_them(
    bucket_bytes: int, buckets: int
) -> None:
    events: list[str] = []
    sums = _Sum(events)
    weights = _weights()
    gradients = SharedGradients(weights, sums, bucket_bytes=bucket_bytes)
    _backward(gradients, weights, _loss(weights, 1, events), last=True)
    each = 4 // buckets
    # A bucket is on its way before the backward comes to the layer in front of it.
    wanted = []
    for bucket in range(buckets):
        layers = range(3 - each * bucket, 3 - each * (bucket + 1), -1)
        wanted += [f"layer {layer}" for layer in layers] + [f"sum {bucket}"]
    assert events[: len(wanted)] == wanted
    assert sums.waited == 0
    gradients.finish_sum()
    assert sums.waited == buckets
    assert len(sums.sent) == buckets


def _replicas(
    rounds: Sequence[Sequence[Sequence[int]]],
    *,
    unreached: Sequence[Sequence[int]] = ((), ()),
    dtype: torch.dtype = torch.float64,
    bucket_bytes: int = 2 * ONE_WEIGHT,
) -> None:
    """Let two replicas make updates, each from the contributions (seeds) that a round names.

    ``unreached`` are the weights that no gradient reaches on the one and on the other. Since a sum
    needs what both sent, the second replica goes first, with nobody to add.
    """
    weights, twins = _weights(dtype=dtype), _weights(dtype=dtype)
    events: list[str] = []
    here, there = _Sum(events), _Sum([])
    ours = SharedGradients(weights, here, bucket_bytes=bucket_bytes)
    theirs = SharedGradients(twins, there, bucket_bytes=bucket_bytes)
    for contributions in rounds:
        all_found: list[list[Tensor | None]] = []
        counts = []
        for sums, gradients, leaves, seeds, cut_off in (
            (there, theirs, twins, contributions[1], unreached[1]),
            (here, ours, weights, contributions[0], unreached[0]),
        ):
            sums.sent, sums.tensors, sums.waited = [], [], 0
            for seed in seeds:
                loss = _loss(leaves, seed, events, cut_off)
                all_found.append(_backward(gradients, leaves, loss, last=seed == seeds[-1]))
            here.others = [there.sent]
            gradients.finish_sum()
            counts.append([tensor.shape for tensor in sums.sent])
            assert sums.waited == len(sums.sent)
        # Both replicas have sent the same buckets, each once and in the same order.
        assert counts[0] == counts[1]
        wanted = _sum_of(all_found)
        total = len(all_found)
        squared = sum(
            torch.linalg.vector_norm(value).item() ** 2 for value in wanted if value is not None
        )
        assert ours.squared_norm() == pytest.approx(squared, rel=1e-12)
        ours.assign_gradients(total)
        theirs.assign_gradients(total)
        _assert_gradients(weights, [None if value is None else value / total for value in wanted])


@pytest.mark.parametrize("unreached", [[0], [1, 2, 3]])
@pytest.mark.parametrize("bucket_bytes", [1, 10**6])
def test_weights_without_a_gradient_get_none(unreached: list[int], bucket_bytes: int) -> None:
    _replicas(
        [[[1], [2]], [[3, 4], [5]]], unreached=(unreached, unreached), bucket_bytes=bucket_bytes
    )


def test_a_weight_may_have_a_gradient_on_one_replica_only() -> None:
    _replicas([[[1], [2]], [[3, 4], [5]], [[6], [7]]], unreached=([1], [2]))


@pytest.mark.parametrize("rounds", [[[[], [1]]], [[[1], [2]], [[], [3, 4]], [[5], []]]])
def test_a_replica_without_a_minibatch_joins_in(rounds: list[list[list[int]]]) -> None:
    _replicas(rounds, unreached=([1], [1]))


def test_complex_weights() -> None:
    _replicas([[[1], [2]], [[3, 4], []]], dtype=torch.complex128, unreached=([2], [2]))


@pytest.mark.parametrize("kind", [Gradients, SharedGradients])
def test_nothing_of_a_discarded_gradient_is_in_the_next_sum(kind: type[Gradients]) -> None:
    weights = _weights()
    gradients = kind(weights)
    gradients.add([torch.full_like(weight, torch.inf) for weight in weights])
    assert gradients.squared_norm() == torch.inf
    gradients.discard()
    gradients.add([torch.full_like(weight, 8.0) for weight in weights])
    gradients.assign_gradients(4)
    _assert_gradients(weights, [torch.full_like(weight, 2.0) for weight in weights])


@pytest.mark.parametrize("divisor", [1.0, 1024.0])
def test_one_tensor_for_two_weights_is_divided_and_clipped_once(divisor: float) -> None:
    weights = _weights()
    shared = torch.ones(3, 3, dtype=torch.float64)
    gradients = Gradients(weights)
    gradients.add([shared] * len(weights))
    gradients.assign_gradients(divisor)
    clip(weights, 6 / divisor, 3 / divisor)
    _assert_gradients(weights, [shared / 2 / divisor] * len(weights), rtol=1e-3)
    assert bool((shared == 1).all())
