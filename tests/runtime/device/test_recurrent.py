"""Recurrent layers of a GPU, as far as a processor can tell; cuDNN is stood in for."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drlpp.runtime.device import recurrent
from drlpp.runtime.device.recurrent import ON_GPU
from drlpp.runtime.stage.passes.split_backward import SplitBackward

aten = torch.ops.aten
LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN}


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_between_layers_is_torchs(kind: str, *, bidirectional: bool) -> None:
    """With the same seed the same numbers, although each layer is called alone."""
    module = LAYERS[kind](5, 4, 3, dropout=0.4, bidirectional=bidirectional).double()
    given = torch.rand(6, 2, 5, dtype=torch.double, requires_grad=True)
    zeros = torch.zeros(6 if bidirectional else 3, 2, 4, dtype=torch.double)
    weights = list(module.parameters())
    state = [zeros, zeros] if kind == "lstm" else zeros
    arguments = (given, state, weights, True, 3, 0.4, True, bidirectional, False)
    operator = getattr(aten, kind).input
    torch.manual_seed(1)
    wanted: tuple[Tensor, ...] = operator(*arguments)
    torch.manual_seed(1)
    found: tuple[Tensor, ...] = ON_GPU[operator](*arguments)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    totals = [torch.stack([output.sum() for output in outputs]) for outputs in (found, wanted)]
    for one, other in zip(
        torch.autograd.grad(totals[0].sum(), [given, *weights]),
        torch.autograd.grad(totals[1].sum(), [given, *weights]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


class CuDNN:
    """What of cuDNN's is called: its results are torch's, and its reserve is spoiled by use."""

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []

    def _cudnn_rnn_flatten_weight(self, weights: Sequence[Tensor], *_: object) -> Tensor:
        flat = torch.cat([weight.flatten() for weight in weights])
        for weight in weights:
            weight.set_(torch.full_like(weight, torch.nan))
        return flat

    def _cudnn_rnn(
        self,
        given: Tensor,
        weights: Sequence[Tensor],
        each: int,
        flat: Tensor,
        hidden: Tensor,
        cell: Tensor,
        *_: object,
    ) -> tuple[Tensor, ...]:
        self.buffers.append(flat)
        assert each == 4
        own = self._divided(flat, weights)
        found = aten.lstm.input(given, [hidden, cell], own, True, 1, 0.0, True, False, False)
        return (*found, torch.ones(3), flat)

    def _cudnn_rnn_backward(self, *given: Any) -> tuple[Any, ...]:
        samples, weights, _, flat, hidden, cell, _, *gradients = given[:10]
        reserve, mask = given[-2:]
        assert reserve.tolist() == [1, 1, 1], "an earlier backward has spoiled it"
        reserve.data.zero_()
        self.buffers.append(flat)
        assert mask == (True, False, False, True)
        own = [weight.requires_grad_() for weight in self._divided(flat, weights)]
        with torch.enable_grad():
            samples = samples.detach().requires_grad_()
            rest = (own, True, 1, 0.0, True, False, False)
            outputs = aten.lstm.input(samples, [hidden, cell], *rest)
            of_samples, *of_weights = torch.autograd.grad(outputs, [samples, *own], gradients)
        return of_samples, None, None, of_weights

    @staticmethod
    def _divided(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
        parts = flat.split([weight.numel() for weight in weights])
        return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> CuDNN:
    library = CuDNN()
    monkeypatch.setattr(recurrent, "aten", library)
    monkeypatch.setattr(torch, "cudnn_is_acceptable", lambda _: True)
    return library


def lstm() -> SimpleNamespace:
    weights = [weight.double().detach().requires_grad_() for weight in nn.LSTM(5, 4).parameters()]
    given = torch.rand(6, 2, 5, dtype=torch.double, requires_grad=True)
    zeros = torch.zeros(1, 2, 4, dtype=torch.double)
    arguments = (given, [zeros, zeros], weights, True, 1, 0.0, True, False, False)
    output = ON_GPU[aten.lstm.input](*arguments)[0]
    wanted = torch.autograd.grad(aten.lstm.input(*arguments)[0].sum(), [given, *weights])
    return SimpleNamespace(given=given, weights=weights, output=output, wanted=wanted)


def test_a_backward_has_the_weights_of_its_time(cudnn: CuDNN) -> None:
    layers = lstm()
    before = torch.cat([weight.detach().flatten() for weight in layers.weights])
    weights = tuple(layers.weights)
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weights):
        for weight in weights:
            weight.mul_(2)
    torch.autograd.grad(layers.output.sum(), [layers.given, *weights])
    forward, backward = cudnn.buffers
    assert torch.equal(forward, before)
    assert torch.equal(backward, 2 * before)


def test_a_backward_in_two_halves_gives_the_gradients(cudnn: CuDNN) -> None:
    layers = lstm()
    end = layers.output.sum()
    halves = SplitBackward([end], [torch.ones_like(end)], [layers.given], layers.weights)
    found = [*halves.of_received, *halves.of_weights()]
    for one, other in zip(found, layers.wanted, strict=True):
        torch.testing.assert_close(one, other)
