"""Hogwild-style random delays in the reference executor (pipemare, appendix E)."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime import Minibatches, RunOptions, run_reference
from drlpp.runtime.reference.reference_weights import DelayedGradients
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

COUNT, RATE = 12, 0.1
NAIVE = Method(schedule="gpipe", policy="sync")
PLAIN_SGD = OptimizerSpec(name="sgd", options={"lr": RATE, "momentum": 0.0})


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron", layers=4))


def _two_stages(captured: CapturedModel) -> tuple[Placement, list[str]]:
    """A placement, and the names of the weights of its first stage."""
    half = len(captured.graph) // 2
    placement = Placement.from_assignment(
        [int(i >= half) for i in range(len(captured.graph))], (0, 1)
    )
    modules = {op.module for op in captured.graph.operators if op.id < half}
    first = [n for n in captured.state if n.rpartition(".")[0] in modules]
    return placement, first


def _samples() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(40, 16, generator=generator)
    targets = torch.randint(0, 5, (40,), generator=generator)
    return inputs, targets, torch.randint(0, 40, (COUNT, 8), generator=generator)


@pytest.mark.parametrize("annealing", [0, 8])
def test_delays_are_equation_16_with_equation_4(
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch, annealing: int
) -> None:
    """w_{i,t+1} = w_{i,t} − α/τ^p · [∇f_{t−τ_i}(w_{t−τ_i})]_i, written out in plain PyTorch."""
    drawn = {3.0: [0, 1, 2, 0, 3, 1, 4, 2, 2, 0, 1, 3], 1.0: [0, 0, 1, 1, 0, 2, 0, 1, 0, 0, 1, 2]}
    sequences = {scale: iter(delays) for scale, delays in drawn.items()}
    monkeypatch.setattr(DelayedGradients, "draw", lambda delayed: next(sequences[delayed.scale]))
    placement, first = _two_stages(captured)
    inputs, targets, order = _samples()
    found = run_reference(
        captured,
        placement,
        Minibatches([inputs], targets),
        COUNT,
        method=NAIVE,
        optimizer=PLAIN_SGD,
        options=RunOptions(order=order),
        delays=[DelayedGradients(scale, 4, annealing, seed=k) for k, scale in enumerate(drawn)],
    )
    module = captured.reference.build().module
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    gradients = []
    for t in range(COUNT):
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        outputs = functional_call(module, leaves, (inputs[order[t]],))
        loss = F.cross_entropy(outputs, targets[order[t]])
        gradients.append(dict(zip(leaves, torch.autograd.grad(loss, leaves.values()), strict=True)))
        for name in weights:
            scale = 3.0 if name in first else 1.0
            rate = RATE / (1 + scale) ** (1 - min(t / annealing, 1) if annealing else 0)
            delay = min(drawn[scale][t], t)
            weights[name] = weights[name] - rate * gradients[t - delay][name]
    for name, weight in weights.items():
        torch.testing.assert_close(found.state[name], weight, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("scale", "longest"), [(2.0, 100), (5.0, 8), (20.0, 3)])
def test_delays_follow_the_truncated_exponential_distribution(scale: float, longest: int) -> None:
    """P(τ = k) is proportional to e^{−k/scale}: the distribution rounded down is geometric."""
    delayed = DelayedGradients(scale, longest, seed=1)
    draws = torch.tensor([delayed.draw() for _ in range(20_000)])
    wanted = torch.exp(-torch.arange(longest + 1) / scale)
    wanted /= wanted.sum()
    found = torch.bincount(draws, minlength=longest + 1) / len(draws)
    assert (found - wanted).abs().max() < 0.012
