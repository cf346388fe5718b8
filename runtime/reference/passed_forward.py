"""A forward of the reference, kept for its backward, which may be by other weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter

from drlpp.runtime.reference.reference_weights import Weights
from drlpp.runtime.stage.stages import StageOutput
from drlpp.schedule.actions import MicrobatchId


@dataclass
class PassedForward:
    """A forward that waits for its backward, and then for its gradients to be taken."""

    weights: Weights
    received: dict[StageOutput, Tensor]
    outputs: Sequence[Tensor]
    loss: Tensor | None
    gradients: Weights = field(default_factory=dict)


def private(weights: Weights) -> Weights:
    """Return copies that a pass may keep and change."""
    return {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}


def backward(
    passed: PassedForward,
    weights: Weights,
    part: MicrobatchId,
    stage: int,
    gradients: dict[tuple[MicrobatchId, StageOutput], Tensor],
) -> Weights:
    """Return gradients of the weights; add those of what was received to ``gradients``.

    The backward is by ``weights``, which may be others than the forward's.
    """
    # Those that autograd saved are replaced.
    _overwrite(passed.weights, weights)
    ends: list[tuple[Tensor, Tensor | None]] = []
    if passed.loss is not None:
        ends.append((passed.loss, None))
    for index, output in enumerate(passed.outputs):
        gradient = gradients.pop((part, StageOutput(stage, index)), None)
        if gradient is not None and output.requires_grad:
            ends.append((output, gradient))
    received = {key: value for key, value in passed.received.items() if value.requires_grad}
    leaves = [*received.values(), *passed.weights.values()]
    found: Sequence[Tensor | None] = [None] * len(leaves)
    if ends and leaves:
        found = torch.autograd.grad(
            [end for end, _ in ends], leaves, [seed for _, seed in ends], allow_unused=True
        )
    for key, gradient in zip(received, found, strict=False):
        if gradient is not None:
            known = gradients.get((part, key))
            gradients[part, key] = gradient if known is None else known + gradient
    own = zip(passed.weights, found[len(received) :], strict=True)
    return {name: gradient for name, gradient in own if gradient is not None}


def _overwrite(weights: Weights, values: Weights) -> None:
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(weights.values())):
        for name, weight in weights.items():
            weight.copy_(values[name])
