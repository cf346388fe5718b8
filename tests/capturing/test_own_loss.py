"""Losses that a model computes itself, wherever it returns them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp import Task, capture
from drlpp.errors import InvalidModel


class Named(NamedTuple):
    """Its loss has a name, and is not the first."""

    logits: Tensor
    loss: Tensor


@dataclass
class Known:
    """A dataclass that torch.export knows."""

    logits: Tensor
    loss: Tensor


@dataclass
class Unknown:
    """One that it does not know."""

    logits: Tensor
    loss: Tensor


torch.export.register_dataclass(Known)

Result = Callable[[Tensor, Tensor], Any]


class Classifier(nn.Module):
    """Takes its labels, and returns a loss and logits in some form."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        # In a tuple: no attribute that is called like a module.
        self.result = (result,)

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        """Return what the form makes of both."""
        logits = self.head(torch.tanh(self.hidden(x)))
        return self.result[0](F.cross_entropy(logits, labels), logits)


def classifier(result: Result) -> Task:
    inputs = {"x": torch.randn(4, 6), "labels": torch.randint(3, (4,))}
    return Task(Classifier(result), inputs)


@pytest.mark.parametrize(
    "result",
    [
        lambda loss, logits: loss,
        lambda loss, logits: (loss, logits),
        lambda loss, logits: [loss, logits],
        lambda loss, logits: {"logits": logits, "loss": loss},
        lambda loss, logits: OrderedDict(logits=logits, loss=loss),
        lambda loss, logits: Named(logits, loss),
        lambda loss, logits: Known(logits, loss),
    ],
)
def test_the_loss_that_a_model_returns_is_its_loss(result: Result) -> None:
    task = classifier(result)
    captured = capture(task)
    assert captured.task.loss is not None
    logits = task.module.head(torch.tanh(task.module.hidden(task.inputs["x"])))
    wanted = F.cross_entropy(logits, task.inputs["labels"])
    returned = captured.module(**task.inputs)
    found = captured.task.loss(returned, captured.task.targets)
    assert found.item() == pytest.approx(wanted.item())


@pytest.mark.parametrize(
    "result",
    [
        lambda loss, logits: logits,
        lambda loss, logits: (logits, loss),
        lambda loss, logits: {"logits": logits, "cost": loss},
        lambda loss, logits: {"logits": logits, "loss": loss.expand(4)},
        lambda loss, logits: Named(logits, loss.long()),
    ],
)
def test_what_is_no_single_number_by_that_name_is_no_loss(result: Result) -> None:
    assert capture(classifier(result)).task.loss is None


def test_a_loss_of_the_outputs_alone_goes_before() -> None:
    task = classifier(lambda loss, logits: (logits, loss))
    captured = capture(task._replace(loss=lambda outputs: outputs[1]))
    assert captured.task.loss is not None
    found = captured.task.loss(captured.module(**task.inputs), captured.task.targets)
    assert found == captured.module(**task.inputs)[1]


def test_a_type_that_torch_does_not_know_is_named_with_the_way_out() -> None:
    with pytest.raises(InvalidModel, match=r"returns a Unknown, .*register_dataclass\(Unknown\)"):
        capture(classifier(lambda loss, logits: Unknown(logits, loss)))


def test_a_tensor_given_twice_is_two_inputs() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return (self.weight * left - right).square().mean()

    x = torch.randn(4, 3)
    captured = capture(Task(Both(), {"left": x, "right": x}))
    assert captured.module(left=x, right=x + 1).item() == pytest.approx(1.0)
