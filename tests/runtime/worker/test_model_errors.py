"""A model that fails on one worker while others wait for it: the measurement fails, and soon."""

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
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


def fails_backward() -> tuple[nn.Module, Tensor]:
    return FailsBackward(), torch.randn(8, WIDTH)


def test_an_error_ends_the_measurement() -> None:
    """The second of three stages fails, and the others wait for what it will never send."""
    reference = ModelReference.named("tests.runtime.worker.test_model_errors:fails_backward")
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
        assert "derivative for 'igamma: input' is not implemented" in outcome.reason
