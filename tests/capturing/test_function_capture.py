"""A ``torch.autograd.Function`` is captured with its own backward, or refused by name and line."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drlpp.errors import InvalidModel
from drlpp.runtime.deploying.stage_cutting import portable
from tests.support.models.captured_modules import (
    captured_from,
    check_structure,
    gradients,
    run_in_pieces,
    types,
)

WEIGHT = nn.Parameter(torch.ones(4))


class Calling(nn.Module):
    """Calls a Function between two layers."""

    def __init__(self, function: type[torch.autograd.Function], *arguments: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)
        self.function, self.arguments = function, arguments

    def forward(self, x: Tensor) -> Tensor:
        result = self.function.apply(self.first(x), *self.arguments)
        return self.last(result if isinstance(result, Tensor) else result[0])


class Doubled(torch.autograd.Function):
    """The gradient is twice what autograd would say."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float = 1.0) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        made = x.clone()
        made[:, 0] = 0.0  # in place, on a tensor of its own
        return factor * made.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        scale = torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=x.dtype)
        return 2 * ctx.factor * gradient * scale * (1 - x.tanh() ** 2), None


class Inherited(Doubled):
    """The forward is another class's."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return 3 * gradient, None


class WithoutArgument(Doubled):
    """Its backward has no gradient for the middle argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        indices = x.argmax(1)
        ctx.mark_non_differentiable(indices)
        return x + y, indices

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        assert ctx.needs_input_grad == (True, False)
        return gradient, None


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(Doubled, ()), (Doubled, (0.5,)), (Inherited, ()), (WithoutArgument, (torch.ones(2, 4),))],
)
def test_it_computes_what_it_does(
    function: type[torch.autograd.Function], arguments: tuple[Any, ...]
) -> None:
    module = Calling(function, *arguments)
    x = torch.randn(2, 4)
    captured = captured_from(module, x)
    assert types(captured) == ["linear", function.__name__, "linear"]
    check_structure(captured)
    moved = pickle.loads(pickle.dumps(portable(captured.module)))
    torch.testing.assert_close(captured.module(x), module(x))
    torch.testing.assert_close(run_in_pieces(captured, x)[0], module(x))
    for graph in (captured.module, moved):
        found, wanted = gradients(graph, graph(x).sum()), gradients(module, module(x).sum())
        torch.testing.assert_close(found, wanted)


def test_other_strides_than_at_capture_are_laid_out() -> None:
    class Flat(Doubled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view(-1).clone().view(x.shape)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient.view(-1).view(gradient.shape)

    captured = captured_from(Calling(Flat), torch.randn(2, 4))
    (function,) = (m for m in captured.module.modules() if type(m).__name__ == "CapturedFunction")
    x = torch.randn(4, 2).t().requires_grad_()
    # Views are for contiguous memory alone, and the gradient of a sum has no memory of its own.
    function(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(2, 4))


class PassedOn(torch.autograd.Function):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Tensor:
        return gradient


class InPlace(PassedOn):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)


class Random(PassedOn):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class ReadsValues(PassedOn):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient if gradient.sum() > 0 else 2 * gradient


class TakesAList(PassedOn):
    @staticmethod
    def forward(ctx: Any, x: Tensor, others: list[Tensor]) -> Tensor:
        return x + others[0]


class ReturnsMore(PassedOn):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, str]:
        return x.clone(), "more"


class ReadsAWeight(PassedOn):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * WEIGHT


class TooFew(Doubled):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: float) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        (InPlace, (), "in place"),
        (Random, (), "random numbers"),
        (ReadsValues, (), "values of a tensor"),
        (TakesAList, ([torch.ones(4)],), "inside of another argument"),
        (ReturnsMore, (), "no tensor"),
        (ReadsAWeight, (), "weight of the model"),
        (TooFew, (1.0,), "1 gradients for 2 arguments"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_class_and_line(
    function: type[torch.autograd.Function], arguments: tuple[Any, ...], reason: str
) -> None:
    module = Calling(function, *arguments)
    module.weight = WEIGHT
    expected = rf"{function.__name__} \(test_function_capture\.py:\d+\) cannot .*{reason}"
    with pytest.raises(InvalidModel, match=expected):
        captured_from(module, torch.randn(2, 4))


def test_functions_are_themselves_again_afterwards() -> None:
    forwards = [vars(f).get("forward") for f in (Doubled, Inherited, Random)]
    captured_from(Calling(Inherited), torch.randn(2, 4))
    with pytest.raises(InvalidModel):
        captured_from(Calling(Random), torch.randn(2, 4))
    assert [vars(f).get("forward") for f in (Doubled, Inherited, Random)] == forwards


def test_without_gradients_it_is_detached() -> None:
    class Guarded(Calling):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            with torch.no_grad():
                noted = Doubled.apply(x)
            return self.last(x + noted)

    module = Guarded(Doubled)
    x = torch.randn(2, 4)
    captured = captured_from(module, x)
    assert "Doubled" in types(captured)
    found = gradients(captured.module, captured.module(x).sum())
    torch.testing.assert_close(found, gradients(module, module(x).sum()))
