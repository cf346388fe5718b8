"""A graph that computes something else than its module is refused, whatever the cause."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing import module_check
from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidModel
from tests.support.models.captured_modules import captured_from


def _check(captured: CapturedModel, module: nn.Module, loss: Callable[..., Tensor]) -> None:
    """As if ``module`` were what had been captured."""
    object.__setattr__(captured, "task", captured.task._replace(module=module))
    module_check.check_gradients(captured, loss)


class Net(nn.Module):
    """Layers whose gradients tests can get wrong."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(self.norm(self.change(self.first(x))), 0.5, self.training))


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda x: x, None),
        (lambda x: x.detach(), "gradient of first.weight"),
        (lambda x: 0.99 * x + 0.01 * x.detach(), "gradient of first.weight"),
        (lambda x: x + 1e-9, None),
    ],
)
def test_gradients_are_compared(change: Callable[[Tensor], Tensor], differs: str | None) -> None:
    module, other = Net(), Net(change)
    captured = captured_from(module, torch.randn(8, 4), targets=torch.randn(8, 2), loss=F.mse_loss)
    shared = dict(captured.module.named_parameters())
    # The module of the task has to hold the very parameters of the graph.
    for name, weight in shared.items():
        owner, _, attribute = name.rpartition(".")
        setattr(other.get_submodule(owner), attribute, weight)
    if differs is None:
        _check(captured, other, F.mse_loss)
    else:
        with pytest.raises(InvalidModel, match=f"another {differs}"):
            _check(captured, other, F.mse_loss)


def test_a_function_that_comes_into_being_in_the_forward_is_noticed() -> None:
    """No class is known beforehand whose forward could be recorded."""

    def rounded(x: Tensor) -> Tensor:
        class Late(torch.autograd.Function):
            @staticmethod
            def forward(ctx: object, x: Tensor) -> Tensor:
                return x.round()

            @staticmethod
            def backward(ctx: object, gradient: Tensor) -> Tensor:
                return gradient

        return Late.apply(x)

    with pytest.raises(InvalidModel, match=r"gradient of .* than the module itself"):
        captured_from(Net(rounded), torch.randn(8, 4))


def test_nothing_of_the_model_changes() -> None:
    module = Net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(3)
    captured_from(module, torch.randn(8, 4))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(weight.grad is None for weight in module.parameters())
    drawn = torch.rand(3)
    torch.manual_seed(3)
    torch.randn(8, 4)
    assert torch.equal(torch.rand(3), drawn), "nor does the caller's generator"


class Switching(nn.Module):
    """What it does in evaluation is its own affair."""

    def __init__(self, scale: float, leaves: int = 1) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 2), nn.BatchNorm1d(2)
        self.scale, self.leaves = scale, leaves

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = self.norm(self.linear(x)) * (1.0 if self.training else self.scale)
        return (x,) * self.leaves if self.training else x


def test_an_evaluation_that_would_be_another_is_refused() -> None:
    captured = captured_from(Switching(0.5), torch.randn(8, 4))
    with pytest.raises(InvalidModel, match=r"in evaluation mode its module gives other outputs"):
        captured.evaluation  # noqa: B018 - refused when it is asked for
    assert captured.task.module.training
    fewer = captured_from(Switching(0.5, leaves=2), torch.randn(8, 4))
    assert len(fewer.evaluation(torch.randn(8, 4))) == 2
