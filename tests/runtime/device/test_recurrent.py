"""Recurrent layers of a GPU, as far as a processor can tell: dropout, shapes, packed sequences."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from drlpp.runtime.device.recurrent import ON_GPU

aten = torch.ops.aten
LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_between_layers_is_torchs(kind: str, *, bidirectional: bool, packed: bool) -> None:
    """With the same seed the same numbers, although each layer is called alone."""
    module = LAYERS[kind](5, 4, 3, dropout=0.4, bidirectional=bidirectional).double()
    given = torch.rand(6, 2, 5, dtype=torch.double, requires_grad=True)
    zeros = torch.zeros(6 if bidirectional else 3, 2, 4, dtype=torch.double)
    weights = list(module.parameters())
    arguments: list[object] = [given]
    if packed:
        samples = pack_padded_sequence(given, torch.tensor([6, 4]))
        arguments = [samples.data, samples.batch_sizes]
    arguments += [[zeros, zeros] if kind == "lstm" else zeros, weights, True, 3, 0.4, True]
    arguments += [bidirectional] if packed else [bidirectional, False]
    operator = getattr(aten, kind).data if packed else getattr(aten, kind).input
    torch.manual_seed(1)
    wanted: tuple[Tensor, ...] = operator(*arguments)
    torch.manual_seed(1)
    found: tuple[Tensor, ...] = ON_GPU[operator](*arguments)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    total, total_wanted = (sum(output.sum() for output in outputs) for outputs in (found, wanted))
    assert isinstance(total, Tensor)
    assert isinstance(total_wanted, Tensor)
    for one, other in zip(
        torch.autograd.grad(total, [given, *weights], retain_graph=True),
        torch.autograd.grad(total_wanted, [given, *weights]),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_without_training_nothing_is_dropped() -> None:
    module = nn.GRU(5, 4, 2, dropout=0.9).double().eval()
    given, zeros = torch.rand(6, 2, 5).double(), torch.zeros(2, 2, 4).double()
    weights = list(module.parameters())
    arguments = (given, zeros, weights, True, 2, 0.9, False, False, False)
    torch.testing.assert_close(ON_GPU[aten.gru.input](*arguments)[0], module(given)[0])
