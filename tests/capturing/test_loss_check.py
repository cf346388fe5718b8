"""A loss that is a sum over samples is refused, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing import capture as capturing
from drlpp.capturing.capture import capture
from drlpp.errors import InvalidModel
from drlpp.models.task import Task

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


def of_dictionary(reduction: str) -> Loss:
    return lambda outputs, targets: entropy(reduction)(outputs["logits"], targets)


def of_pair(reduction: str) -> Loss:
    """Two terms, as an autoencoder's."""

    def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        squares = outputs[1].square()
        penalty = squares.sum() if reduction == "sum" else squares.mean()
        return entropy(reduction)(outputs[0], targets) + 0.5 * penalty

    return loss


def task(loss: Loss, samples: int = 8, ignored: int = 0, net: nn.Module | None = None) -> Task:
    torch.manual_seed(0)
    return Task(net or Net(), torch.randn(samples, 3, 6), labels(samples, ignored), loss)


def in_dictionary(logits: Tensor) -> dict[str, Tensor]:
    return {"logits": logits}


def in_pair(logits: Tensor) -> tuple[Tensor, Tensor]:
    return logits, logits * 2


def with_number(logits: Tensor) -> dict[str, Tensor]:
    """Besides the logits there is a number of the whole batch, so no outputs to divide."""
    return {"logits": logits, "largest": logits.max()}


@pytest.mark.parametrize("samples", [2, 3, 8, 9])
def test_a_sum_is_refused(samples: int) -> None:
    with pytest.raises(InvalidModel, match=_SUM) as raised:
        capture(task(entropy("sum"), samples))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("form", "loss"),
    [(in_dictionary, of_dictionary), (in_pair, of_pair), (with_number, of_dictionary)],
)
def test_outputs_may_be_structures(
    form: Callable[[Tensor], Any], loss: Callable[[str], Loss]
) -> None:
    capture(task(loss("mean"), net=Net(form)))
    with pytest.raises(InvalidModel, match=_SUM):
        capture(task(loss("sum"), net=Net(form)))


def test_a_sum_that_the_model_returns_is_refused() -> None:
    inputs = {"x": torch.randn(8, 3, 6), "labels": labels(8)}
    capture(Task(OwnLoss(entropy("mean")), inputs))
    with pytest.raises(InvalidModel, match=_SUM):
        capture(Task(OwnLoss(entropy("sum")), inputs))


def test_a_sum_divided_by_a_constant_is_one_and_by_the_samples_none() -> None:
    with pytest.raises(InvalidModel, match="not by a constant"):
        capture(task(lambda outputs, targets: entropy("sum")(outputs, targets) / 8))
    capture(task(lambda outputs, targets: entropy("sum")(outputs, targets) / len(targets)))


def test_a_negative_sum_is_refused() -> None:
    with pytest.raises(InvalidModel, match=_SUM):
        capture(task(lambda outputs, targets: -entropy("sum")(outputs, targets)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_in_other_precisions(dtype: torch.dtype) -> None:
    def reduced(reduction: str) -> Loss:
        return lambda outputs, targets: entropy(reduction)(outputs.to(dtype), targets)

    capture(task(reduced("mean"), ignored=5))
    with pytest.raises(InvalidModel, match=_SUM):
        capture(task(reduced("sum")))


@pytest.mark.parametrize("ignored", [1, 5, 11, 12, 13, 23])
@pytest.mark.parametrize("loss", [entropy("mean"), of_mask])
def test_a_mean_over_the_tokens_that_count_is_none(loss: Loss, ignored: int) -> None:
    """From 12 the first half has none: its mean is no number, or 0."""
    capture(task(loss, ignored=ignored))


def uniform(outputs: Tensor, targets: Tensor) -> Tensor:
    """Which of 4 samples belongs to which, of a model that knows nothing yet: the log of 4."""
    logits = 0 * outputs.mean((1, 2)).outer(outputs.mean((1, 2)))
    return F.cross_entropy(logits, torch.arange(len(targets)))


def of_four(outputs: Tensor, targets: Tensor) -> Tensor:
    return entropy("sum")(outputs.view(4, 3, 5), targets)


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(lambda outputs, targets: outputs.sum() * 0, id="zero"),
        pytest.param(lambda outputs, targets: outputs.square().sum() * 1e-12, id="nearly zero"),
        pytest.param(lambda outputs, targets: outputs.mean() * 0 + 2, id="the same for all"),
        pytest.param(uniform, id="by chance"),
        pytest.param(of_four, id="cannot be halved"),
    ],
)
def test_what_is_not_known_to_be_a_sum_is_captured(loss: Loss) -> None:
    capture(task(loss, samples=4))


def test_one_sample_has_no_halves() -> None:
    capture(task(entropy("sum"), samples=1))


def test_nothing_of_the_model_changes() -> None:
    inputs = {"x": torch.randn(8, 3, 6), "labels": labels(8)}
    module = OwnLoss(entropy("mean"))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.net.norm.eval()
    torch.manual_seed(3)
    capture(Task(module, inputs))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.training
    assert not module.net.norm.training
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), drawn)


def test_it_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    capture(task(entropy("sum")), check=False)
    monkeypatch.setattr(capturing, "_two_samples_are_quicker", lambda *_: True)
    with pytest.raises(InvalidModel, match=_SUM):
        capture(task(entropy("sum")))
