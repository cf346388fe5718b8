"""What torch.export drops without a word is refused by name, or noted where it does no harm."""

import random
from collections.abc import Callable
from typing import Any

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
        self.history: list[float] = []
        self.known: dict[str, Any] = {"seen": 0}
        self.cache: Tensor | None = None
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.more(self, self.linear(x))


def _keeps_a_tensor(layer: Layer, x: Tensor) -> Tensor:
    layer.state = x.detach()
    return x


def _counts(layer: Layer, x: Tensor) -> Tensor:
    layer.calls = getattr(layer, "calls", 0) + 1
    return x


def _grows_a_list(layer: Layer, x: Tensor) -> Tensor:
    layer.history.append(1.0)
    return x


def _changes_a_dictionary(layer: Layer, x: Tensor) -> Tensor:
    layer.known["seen"] += 1
    return x


@pytest.mark.parametrize(
    ("more", "attribute"),
    [
        (_keeps_a_tensor, "0.state"),
        (_counts, "0.calls"),
        (_grows_a_list, "0.history"),
        (_changes_a_dictionary, "0.known"),
    ],
)
def test_state_that_a_call_leaves_for_the_next_is_refused(
    more: Callable[[Layer, Tensor], Tensor], attribute: str
) -> None:
    layer = Layer(more)
    before = set(vars(layer))
    with pytest.raises(InvalidModel, match=f"changes the attribute {attribute},"):
        captured_from(nn.Sequential(layer, nn.ReLU()), torch.randn(2, 4))
    assert set(vars(layer)) == before, "capturing leaves the user's module as it was"


def test_state_in_the_loss_is_refused() -> None:
    class Loss(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.last = (outputs - targets).square().mean()
            return self.last

    with pytest.raises(InvalidModel, match=r"loss .* changes the attribute function\.last"):
        captured_from(nn.Linear(4, 4), torch.randn(2, 4), targets=torch.randn(2, 4), loss=Loss())


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


def _hooks_a_tensor(layer: Layer, x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: 2 * gradient)
    return x


def test_a_hook_on_a_tensor_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidModel, match=r"hook on the gradient of a tensor \(test_dropped\.py:"):
        captured_from(Layer(_hooks_a_tensor), torch.randn(2, 4))


def _hooked_parameter(layer: Layer) -> None:
    layer.linear.bias.register_hook(lambda gradient: 2 * gradient)


def _accumulating_hook(layer: Layer) -> None:
    layer.linear.bias.register_post_accumulate_grad_hook(lambda parameter: None)


def _hooked_module(layer: Layer) -> None:
    layer.linear.register_full_backward_hook(lambda *_: None)


def _hooked_before(layer: Layer) -> None:
    layer.linear.register_full_backward_pre_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("hook", "where"),
    [
        (_hooked_parameter, "parameter linear.bias"),
        (_accumulating_hook, "parameter linear.bias"),
        (_hooked_module, r"module linear \(Linear\)"),
        (_hooked_before, r"module linear \(Linear\)"),
    ],
)
def test_hooks_on_gradients_are_refused(hook: Callable[[Layer], None], where: str) -> None:
    layer = Layer()
    hook(layer)
    with pytest.raises(InvalidModel, match=f"{where} has a .*hook.*workers run no hooks"):
        captured_from(layer, torch.randn(2, 4))


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


def test_an_operator_of_an_extension_is_refused() -> None:
    @torch.library.custom_op("drlpp_tests::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return 2 * x

    double.register_fake(torch.empty_like)
    with pytest.raises(InvalidModel, match="operator drlpp_tests::double of an extension"):
        captured_from(Layer(lambda _, x: double(x)), torch.randn(2, 4))


def test_other_hooks_and_functions_work_again_afterwards() -> None:
    layer = Layer(_hooks_a_tensor)
    with pytest.raises(InvalidModel):
        captured_from(layer, torch.randn(2, 4))
    x = torch.randn(2, 4)
    layer(x).sum().backward()
    assert layer.linear.bias.grad is not None
    assert torch.equal(layer.linear.bias.grad, torch.full((4,), 4.0))
    inner = nn.Linear(4, 4)
    given = torch.randn(2, 4, requires_grad=True)
    for reentrant in (True, False):
        checkpoint(inner, given, use_reentrant=reentrant).sum().backward()
    assert inner.bias.grad is not None
    assert torch.equal(inner.bias.grad, torch.full((4,), 4.0))


def _flips_a_coin(layer: Layer, x: Tensor) -> Tensor:
    return x * random.random()


def test_random_numbers_of_python_are_refused() -> None:
    with pytest.raises(InvalidModel, match=r"run twice on the same inputs.* Python or numpy"):
        captured_from(Layer(_flips_a_coin), torch.randn(2, 4))
