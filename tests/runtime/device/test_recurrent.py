"""Recurrent layers of a GPU, as far as a processor can tell: `test_gpu.py` has the rest."""

import pytest
import torch
from torch import Tensor, nn

from drlpp.runtime.device.recurrent import ON_GPU

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
