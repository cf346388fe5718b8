"""Gradients that are one tensor to autograd: of two weights, and of what was received."""

import torch
from torch import nn

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.training.pipelines import (
    assert_state,
    in_a_row,
)


class Twins(nn.Module):
    """Weights whose gradients are one tensor to autograd, and that of the input as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.one = nn.Parameter(torch.randn(8, 4))
        self.other = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + (self.one + self.other)


def twins() -> tuple[nn.Module, torch.Tensor]:
    """Without a loss the mean square of the outputs stands in."""
    return Twins().double(), torch.ones(8, 4, dtype=torch.float64)


def test_gradients_that_share_memory_are_scaled_once() -> None:
    reference = ModelReference.named("tests.runtime.stage.test_shared_memory:twins")
    captured = capture(reference)
    method = Method(schedule="gpipe", policy="sync", clip_norm=0.01)
    spec = OptimizerSpec(name="sgd", options={"lr": 0.5, "momentum": 0.0})
    with ClusterSession(captured, workers=2) as session:
        deployment = session.deploy(in_a_row(session.graph, 0, 1), method, spec)
        session.run(deployment, 1)
        state, _ = session.collect(deployment)
    module = reference.build().module
    module(torch.ones(8, 4, dtype=torch.float64)).square().mean().backward()
    nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    torch.optim.SGD(module.parameters(), lr=0.5).step()
    assert_state(state, module)
