"""A model that fails on one worker while others wait for it: the measurement fails, and soon."""

import time

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.torch_versions import older_than
from tests.support.training.pipelines import in_a_row

WIDTH = 6


class FailsBackward(nn.Module):
    """Torch has no derivative of the incomplete gamma function by its first argument."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.special.gammainc(F.softplus(self.first(x)), torch.ones(WIDTH))
        return self.third(torch.tanh(self.second(x)))


class FailsWithGradients(nn.Module):
    """The operator refuses a weight that wants a gradient, and only recomputation asks for one.

    On a worker it is not in a region without gradients any more: those end in a detached tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        chance = torch.sigmoid(self.first(x))
        with torch.no_grad():
            x = F.binary_cross_entropy(chance, x.sigmoid(), self.weight, reduction="none")
        return self.third(torch.tanh(self.second(x + chance)))


def fails_backward() -> tuple[nn.Module, Tensor]:
    return FailsBackward(), torch.randn(8, WIDTH)


def fails_with_gradients() -> tuple[nn.Module, Tensor]:
    return FailsWithGradients(), torch.randn(8, WIDTH)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("fails_backward", "derivative for 'igamma: input' is not implemented"),
        pytest.param(
            "fails_with_gradients",
            "not differentiable with respect to argument 'weight'",
            marks=pytest.mark.skipif(
                older_than("2.9"), reason="torch.export 2.8 refuses the model"
            ),
        ),
    ],
)
def test_an_error_ends_the_measurement(factory: str, reason: str) -> None:
    """The second of three stages fails, and the others wait for what it will never send."""
    reference = ModelReference.named(f"tests.runtime.worker.test_model_errors:{factory}")
    # Capturing would refuse it already.
    captured = capture(reference, check=False)
    method = Method(schedule="gpipe", policy="sync", microbatches=4, recompute=True)
    with ClusterSession(captured, workers=3) as session:
        placement = in_a_row(session.graph, 0, 1, 2)
        begin = time.monotonic()
        outcome = session.measure(placement, minibatches=4, method=method)
        assert time.monotonic() - begin < 30
        assert isinstance(outcome, FailedMeasurement)
        assert outcome.failure == "error in the model"
        assert outcome.reason.startswith("worker 1: ")
        assert reason in outcome.reason
