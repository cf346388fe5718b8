"""A loss that a model computes itself is found, and one that is a sum over samples is refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.errors import InvalidModel
from drlpp.models.task import Task


class Named(NamedTuple):
    """Its loss has a name, and is not the first."""

    logits: Tensor
    loss: Tensor


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
    ("result", "is_loss"),
    [
        (lambda loss, logits: loss, True),
        (lambda loss, logits: (loss, logits), True),
        (lambda loss, logits: {"logits": logits, "loss": loss}, True),
        (lambda loss, logits: OrderedDict(logits=logits, loss=loss), True),
        (lambda loss, logits: Named(logits, loss), True),
        # No single number by that name.
        (lambda loss, logits: logits, False),
        (lambda loss, logits: (logits, loss), False),
        (lambda loss, logits: {"logits": logits, "cost": loss}, False),
        (lambda loss, logits: {"logits": logits, "loss": loss.expand(4)}, False),
        (lambda loss, logits: Named(logits, loss.long()), False),
    ],
)
def test_the_loss_that_a_model_returns_is_its_loss(result: Result, is_loss: bool) -> None:
    task = classifier(result)
    captured = capture(task)
    assert (captured.task.loss is not None) == is_loss
    if not is_loss:
        return
    logits = task.module.head(torch.tanh(task.module.hidden(task.inputs["x"])))
    wanted = F.cross_entropy(logits, task.inputs["labels"])
    returned = captured.module(**task.inputs)
    found = captured.task.loss(returned, captured.task.targets)
    assert found.item() == pytest.approx(wanted.item())


Loss = Callable[[Any, Any], Tensor]

_SUM = r"the loss of .* is a sum over samples.*reduction=\"mean\""
_IGNORED = -100


class Net(nn.Module):
    """Logits (samples, tokens, 5) of inputs (samples, tokens, 6), in some form."""

    def __init__(self, form: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 5), nn.BatchNorm1d(3)
        # In a tuple: no attribute that is called like a module.
        self.form = (form,)

    def forward(self, x: Tensor) -> Any:
        return self.form[0](F.dropout(self.norm(self.linear(x)), 0.3, self.training))


class OwnLoss(nn.Module):
    """Returns its loss; in training every sample's part of it depends on the others."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.net, self.loss = Net(), (loss,)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"logits": logits, "loss": self.loss[0](logits, labels)}


def labels(samples: int, ignored: int = 0) -> Tensor:
    """Return labels (samples, 3), of which the first ones are ignored."""
    values = torch.randint(5, (samples * 3,))
    values[:ignored] = _IGNORED
    return values.reshape(samples, 3)


def entropy(reduction: str) -> Loss:
    return lambda logits, targets: F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction=reduction
    )


def of_mask(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the tokens that count, 0 if there are none."""
    each = F.cross_entropy(logits.mT, targets, reduction="none", ignore_index=_IGNORED)
    return each.sum() / (targets != _IGNORED).sum().clamp(min=1)


def task(loss: Loss, samples: int = 8, ignored: int = 0, net: nn.Module | None = None) -> Task:
    torch.manual_seed(0)
    return Task(net or Net(), torch.randn(samples, 3, 6), labels(samples, ignored), loss)


def test_a_sum_that_the_model_returns_is_refused() -> None:
    inputs = {"x": torch.randn(8, 3, 6), "labels": labels(8)}
    module = OwnLoss(entropy("mean"))
    module.net.norm.eval()
    capture(Task(module, inputs))
    assert module.training
    assert not module.net.norm.training
    with pytest.raises(InvalidModel, match=_SUM):
        capture(Task(OwnLoss(entropy("sum")), inputs))
    capture(Task(OwnLoss(entropy("sum")), inputs), check=False)


def of_dictionary(reduction: str) -> Loss:
    return lambda outputs, targets: entropy(reduction)(outputs["logits"], targets)


def with_number(logits: Tensor) -> dict[str, Tensor]:
    """Besides the logits there is a number of the whole batch, so no outputs to divide."""
    return {"logits": logits, "largest": logits.max()}


def uniform(outputs: Tensor, targets: Tensor) -> Tensor:
    """Which of 4 samples belongs to which, of a model that knows nothing yet: the log of 4."""
    logits = 0 * outputs.mean((1, 2)).outer(outputs.mean((1, 2)))
    return F.cross_entropy(logits, torch.arange(len(targets)))


@pytest.mark.parametrize(
    ("loss", "samples", "net"),
    [
        (entropy("sum"), 2, None),
        (entropy("sum"), 9, None),
        (lambda o, t: -entropy("sum")(o, t), 8, None),
        (lambda o, t: entropy("sum")(o, t) / 8, 8, None),
        (of_dictionary("sum"), 8, with_number),
    ],
)
def test_a_sum_is_refused(loss: Loss, samples: int, net: Any) -> None:
    with pytest.raises(InvalidModel, match=_SUM) as raised:
        capture(task(loss, samples, net=net and Net(net)))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("loss", "samples", "ignored", "net"),
    [
        # From 12 ignored tokens the first half has none: its mean is no number, or 0.
        *((loss, 8, n, None) for loss in (entropy("mean"), of_mask) for n in (5, 12)),
        (lambda o, t: entropy("sum")(o, t) / len(t), 8, 0, None),
        (lambda o, t: entropy("mean")(o.bfloat16(), t), 8, 5, None),
        (of_dictionary("mean"), 8, 0, with_number),
        (lambda o, t: o.square().sum() * 1e-12, 4, 0, None),
        # The same by chance; not to be halved; without halves.
        (uniform, 4, 0, None),
        (lambda o, t: entropy("sum")(o.view(4, 3, 5), t), 4, 0, None),
        (entropy("sum"), 1, 0, None),
    ],
)
def test_no_other_loss_is_refused(loss: Loss, samples: int, ignored: int, net: Any) -> None:
    capture(task(loss, samples, ignored, net and Net(net)))
