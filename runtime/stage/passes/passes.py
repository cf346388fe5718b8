"""Calling a stage: what its arguments stand for, and the types that its outputs travel in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from drlpp.runtime.stage.passes.split_backward import SplitBackward
from drlpp.runtime.stage.stages import (
    Argument,
    Buffer,
    ModelInput,
    StageOutput,
    StageProgram,
    Weight,
)

Received = dict[StageOutput, Tensor]


@dataclass
class InFlight:
    """What a forward leaves for its backward.

    ``outputs`` are where backwards begin of what later stages read, by index, or None of what has
    no gradient. Their values autograd has if it needs them. There are none where the activations
    are to be computed again. ``loss`` is that of the last stage, and ``half_done`` the backward
    between its halves.
    """

    received: Received
    outputs: Mapping[int, GradientEdge | None] = field(default_factory=dict)
    loss: Tensor | None = None
    half_done: SplitBackward | None = None

    @property
    def leaves(self) -> dict[StageOutput, Tensor]:
        """What was received and has a gradient."""
        return {key: value for key, value in self.received.items() if value.requires_grad}

    def keep(self, outputs: Mapping[int, Tensor], loss: Tensor | None) -> None:
        """Note what a forward has made."""
        self.outputs = {
            index: get_gradient_edge(output) if output.requires_grad else None
            for index, output in outputs.items()
        }
        self.loss = loss

    def ends(
        self, gradients: Mapping[int, Tensor], loss_scale: float
    ) -> tuple[list[GradientEdge], list[Tensor]]:
        """Return what the backward begins with, and its gradients there.

        Those are the loss, scaled, and outputs of which later stages sent ``gradients``.
        """
        ends: list[GradientEdge] = []
        seeds: list[Tensor] = []
        if self.loss is not None and self.loss.requires_grad:
            ends.append(get_gradient_edge(self.loss))
            seeds.append(torch.full_like(self.loss, loss_scale))
        for index, gradient in gradients.items():
            if (end := self.outputs[index]) is not None:
                ends.append(end)
                seeds.append(gradient)
        return ends, seeds

    def sent_back(self, found: Sequence[Tensor | None]) -> dict[StageOutput, Tensor]:
        """Return the gradients of :attr:`leaves`, zeros where there is none."""
        return {
            key: torch.zeros_like(leaf) if gradient is None else gradient
            for (key, leaf), gradient in zip(self.leaves.items(), found, strict=True)
        }


@dataclass(frozen=True)
class StageValues:
    """Everything that a stage's arguments can stand for."""

    inputs: Mapping[int, Tensor] | Sequence[Tensor]
    received: Mapping[StageOutput, Tensor]
    weights: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]

    def __getitem__(self, argument: Argument) -> Tensor:
        match argument:
            case Weight(name):
                return self.weights[name]
            case Buffer(name):
                return self.buffers[name]
            case ModelInput(index):
                return self.inputs[index]
            case StageOutput():
                return self.received[argument]

    def call_with_loss(
        self, program: StageProgram, targets: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Return the outputs of the stage and, on the last, the loss."""
        outputs = program.function(*(self[argument] for argument in program.arguments))
        if program.loss is None:
            return outputs, None
        return outputs, program.loss(*self.results(program, outputs), *targets)

    def results(self, program: StageProgram, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Return what the model returns, on the last stage."""
        return [
            outputs[result.index]
            if isinstance(result, StageOutput) and result.stage == program.stage
            else self[result]
            for result in program.results
        ]


def as_sent(
    program: StageProgram, outputs: Sequence[Tensor] | Mapping[int, Tensor]
) -> dict[int, Tensor]:
    """Return what other stages read of a stage's outputs, in the types that these expect."""
    expected = {index: spec.dtype for specs in program.sends.values() for index, spec in specs}
    return {index: outputs[index].to(getattr(torch, dtype)) for index, dtype in expected.items()}
