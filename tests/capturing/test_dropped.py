"""What torch.export drops is no loss where buffers, forward hooks and checkpoints are concerned."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drlpp.errors import InvalidModel, ModelNote
from tests.support.models.captured_modules import captured_from, types


class Layer(nn.Module):
    """A linear layer whose forward does something more."""

    def __init__(self, more: Callable[["Layer", Tensor], Tensor] = lambda self, x: x) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.more = more
        self.cache: Tensor | None = None
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.more(self, self.linear(x))


def _caches(layer: Layer, x: Tensor) -> Tensor:
    if layer.cache is None:
        layer.cache = torch.arange(4.0)
    return x + layer.cache


def test_a_cache_is_fine_once_it_is_filled() -> None:
    layer = Layer(_caches)
    with pytest.raises(InvalidModel, match="call the module once in its factory"):
        captured_from(layer, torch.randn(2, 4))
    layer(torch.randn(2, 4))
    assert types(captured_from(layer, torch.randn(2, 4))) == ["linear", "add"]


def _averages(layer: Layer, x: Tensor) -> Tensor:
    layer.average = 0.9 * layer.average + 0.1 * x.mean(0).detach()
    return x - layer.average


def test_buffers_are_state_that_is_kept() -> None:
    captured = captured_from(Layer(_averages), torch.randn(2, 4))
    assert "average" in captured.state


def test_hooks_of_the_forward_are_part_of_it() -> None:
    layer = Layer()
    layer.linear.register_forward_hook(lambda module, inputs, output: output.relu())
    assert types(captured_from(layer, torch.randn(2, 4))) == ["linear", "relu"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_computes_the_same_and_is_noted(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=reentrant)

    with pytest.warns(ModelNote, match=r"checkpoint \(test_dropped\.py:\d+\) recomputes nothing"):
        captured = captured_from(Checkpointed(), torch.randn(2, 4))
    assert types(captured) == ["linear", "linear", "dropout", "relu"]
