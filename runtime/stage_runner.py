"""Running one stage: its forward, backward and update, without any communication."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drlpp.optimizer_spec import OptimizerSpec
from drlpp.runtime.gradients import SharedGradients, SingleGradients
from drlpp.runtime.minibatches import Minibatches, Part
from drlpp.runtime.optimizers import (
    OptimizerState,
    build_optimizer,
    load_optimizer_state,
    named_optimizer_state,
)
from drlpp.runtime.policies import build_policy
from drlpp.runtime.stages import Argument, Buffer, ModelInput, StageOutput, StageProgram, Weight
from drlpp.training_options import PolicyName

Loss = Callable[..., Tensor]


def seed_for(seed: int, stage: int, part: Part) -> int:
    """The seed of dropout in a forward: the same in every executor, whoever performs it."""
    digest = hashlib.blake2b(f"{seed} {stage} {part}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


@dataclass
class _InFlight:
    """What a forward leaves for its backward."""

    received: dict[StageOutput, Tensor]
    outputs: Sequence[Tensor]
    loss: Tensor | None


@dataclass(frozen=True)
class _Values:
    """Everything that a stage's arguments can stand for."""

    inputs: Sequence[Tensor]
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

    def call(self, program: StageProgram) -> tuple[Tensor, ...]:
        """The outputs of the stage."""
        return program.function(*(self[argument] for argument in program.arguments))

    def results(self, program: StageProgram, outputs: Sequence[Tensor]) -> list[Tensor]:
        """What the model returns, on the last stage."""
        return [
            outputs[result.index]
            if isinstance(result, StageOutput) and result.stage == program.stage
            else self[result]
            for result in program.results
        ]


@dataclass
class StageRunner:
    """One stage on one worker.

    Attributes:
        program: the stage.
        state: initial values of all parameters and buffers, by name; copied.
        policy: the weight policy's name.
        optimizer: what updates the weights.
        stale: whether any forward of this stage sees other weights than its backward.
        shared_updates: whether several microbatches or replicas contribute to one update.
        loss: gives the loss from the model's flat outputs and the targets (last stage).
        minibatches: where inputs and targets come from.
        seed: of dropout.
        first_minibatch: how many minibatches came before this run; dropout goes on from there.
        losses: of every part, on the last stage; whoever reads them empties them.
        optimizer_state: of an earlier run, by parameter name.
    """

    program: StageProgram
    state: Mapping[str, Tensor]
    policy: PolicyName
    optimizer: OptimizerSpec
    stale: bool
    shared_updates: bool
    loss: Loss | None
    minibatches: Minibatches
    seed: int = 0
    first_minibatch: int = 0
    optimizer_state: OptimizerState = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = self.program.weight_names
        weights = [
            self.state[name].detach().clone(memory_format=torch.contiguous_format).requires_grad_()
            for name in self.names
        ]
        self.buffers = {name: self.state[name].clone() for name in self.program.buffer_names}
        self._optimizer = build_optimizer(self.optimizer, weights) if weights else None
        if self._optimizer:
            load_optimizer_state(self._optimizer, self.names, weights, self.optimizer_state)
        self._policy = build_policy(self.policy, weights, self._optimizer, stale=self.stale)
        self._in_flight: dict[Part, _InFlight] = {}
        build_gradients = SharedGradients if self.shared_updates else SingleGradients
        self._gradients = build_gradients(weights)
        self.losses: dict[Part, float] = {}

    @property
    def weights(self) -> list[Tensor]:
        """The newest weights, in the order of ``names``."""
        return self._policy.weights

    def forward(
        self, part: Part, received: Mapping[StageOutput, Tensor], difference: int
    ) -> Sequence[Tensor]:
        """Perform the forward pass of ``part`` (minibatch, microbatch).

        Args:
            part: what is processed.
            received: outputs of earlier stages that this stage reads.
            difference: s, the updates before the backward of this part.

        Returns:
            The outputs of the stage.
        """
        leaves = {
            key: value.requires_grad_(value.is_floating_point() or value.is_complex())
            for key, value in received.items()
        }
        minibatch, microbatch = part
        passed = (self.first_minibatch + minibatch, microbatch)
        torch.manual_seed(seed_for(self.seed, self.program.stage, passed))
        inputs = self.minibatches.inputs(part)
        with self._policy.forward_weights(part, difference) as weights:
            values = _Values(
                inputs, leaves, dict(zip(self.names, weights, strict=True)), self.buffers
            )
            outputs = values.call(self.program)
            loss = None
            if self.loss is not None:
                results = values.results(self.program, outputs)
                loss = self.loss(*results, self.minibatches.targets(part))
                self.losses[part] = loss.item()
        self._in_flight[part] = _InFlight(leaves, outputs, loss)
        return outputs

    def backward(self, part: Part, gradients: Mapping[int, Tensor]) -> dict[StageOutput, Tensor]:
        """Perform the backward pass of ``part`` and add to the gradients of the next update.

        Args:
            part: what is processed.
            gradients: for outputs of this stage (by index) the sum of the gradients that the
                later stages sent.

        Returns:
            The gradients of the floating-point tensors that the forward received.
        """
        passed = self._in_flight.pop(part)
        ends: list[Tensor] = []
        seeds: list[Tensor | None] = []
        if passed.loss is not None:
            ends.append(passed.loss)
            seeds.append(None)
        for index, gradient in gradients.items():
            if passed.outputs[index].requires_grad:
                ends.append(passed.outputs[index])
                seeds.append(gradient)
        leaves = [value for value in passed.received.values() if value.requires_grad]
        weights = self._policy.backward_weights(part)
        found: Sequence[Tensor | None] = (
            torch.autograd.grad(ends, [*leaves, *weights], seeds, allow_unused=True)
            if ends and (leaves or weights)
            else [None] * (len(leaves) + len(weights))
        )
        self._gradients.add(found[len(leaves) :])
        received = [key for key, value in passed.received.items() if value.requires_grad]
        return {
            key: torch.zeros_like(leaf) if gradient is None else gradient
            for key, leaf, gradient in zip(received, leaves, found, strict=False)
        }

    def gradients(self) -> list[Tensor]:
        """The gradients of the next update as few flat tensors, to be summed over the replicas."""
        return self._gradients.flat()

    def update(self, contributions: int) -> None:
        """Update the weights with the mean of the gradients of ``contributions`` microbatches."""
        self._gradients.hand_over(contributions)
        self._policy.update()

    def weights_and_buffers(self) -> dict[str, Tensor]:
        """Current values by name."""
        weights = zip(self.names, self.weights, strict=True)
        return {name: weight.detach() for name, weight in weights} | self.buffers

    def named_optimizer_state(self) -> OptimizerState:
        """The optimizer's state by parameter name."""
        if self._optimizer is None:
            return {}
        return named_optimizer_state(self._optimizer, self.names, self.weights)


@dataclass
class EvaluationRunner:
    """Forward passes of a stage in evaluation mode, on the weights of the runner that trains it.

    Attributes:
        program: the stage, cut from the evaluation graph.
        trained: the same stage in training.
        score: gives one number for each sample from the model's flat outputs and the targets
            (last stage).
        minibatches: where inputs and targets come from.
        scores: of every part, one number for each sample.
    """

    program: StageProgram
    trained: StageRunner
    score: Loss | None
    minibatches: Minibatches
    scores: dict[Part, Tensor] = field(default_factory=dict)

    def forward(
        self, part: Part, received: Mapping[StageOutput, Tensor], difference: int
    ) -> Sequence[Tensor]:
        """Perform the forward pass of ``part``; nothing is kept for a backward."""
        with torch.no_grad():
            state = self.trained.weights_and_buffers()
            values = _Values(self.minibatches.inputs(part), received, state, state)
            outputs = values.call(self.program)
            if self.score is not None:
                results = values.results(self.program, outputs)
                self.scores[part] = self.score(*results, self.minibatches.targets(part))
        return outputs
