"""The reference executor: one process, no communication, every version of the weights kept.

It replays the same schedule as the workers, with the formulas of the papers written down plainly
and nothing fused, cached or overlapped. It is the oracle of the runtime: after N minibatches the
workers' weights must equal its weights to rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, fx
from torch.autograd import _unsafe_preserve_version_counter

from drlpp.capture import CapturedModel, capture_microbatch
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement import Placement
from drlpp.runtime.minibatches import Minibatches, Part
from drlpp.runtime.optimizers import build_optimizer
from drlpp.runtime.stage_runner import seed_for
from drlpp.runtime.stages import (
    Argument,
    Buffer,
    ModelInput,
    StageOutput,
    StageProgram,
    Weight,
    cut_stages,
)
from drlpp.schedule import (
    AllReduce,
    Backward,
    Forward,
    Update,
    build_schedule,
    in_order,
    weight_versions,
)
from drlpp.training_options import Method

Weights = dict[str, Tensor]


@dataclass
class _Stage:
    """A stage with all its history. Replicas share it, as their updates are the same."""

    program: StageProgram
    versions: list[Weights]
    optimizer: OptimizerSpec
    gradients: list[Weights] = field(default_factory=list)
    collected: dict[int, list[Weights]] = field(default_factory=dict)
    """For an update, the gradients of all replicas."""

    def direction(self, version: int) -> Weights:
        """ΔW_t of pipeoptim Table I for the weights W_t of ``version``, zero before any update.

        SGD with momentum: m_t = u · m_{t−1} + (1 − τ) · g_t. Adam and AdamW: m̂_t / (√v̂_t + ε).
        The momenta are summed up anew from all gradients so far.
        """
        value = self.optimizer.value
        result = {}
        for name, weight in self.versions[version].items():
            momentum, second = torch.zeros_like(weight), torch.zeros_like(weight)
            steps = [k for k in range(1, version + 1) if name in self.gradients[k - 1]]
            for count, step in enumerate(steps, start=1):
                gradient = self.gradients[step - 1][name]
                if self.optimizer.name != "adamw":
                    before = self.versions[step - 1][name]
                    gradient = gradient + value("weight_decay") * before
                if self.optimizer.name == "sgd":
                    kept = 1.0 if count == 1 else 1 - value("dampening")
                    momentum = value("momentum") * momentum + kept * gradient
                else:
                    beta1, beta2 = value("betas")
                    momentum = beta1 * momentum + (1 - beta1) * gradient
                    second = beta2 * second + (1 - beta2) * gradient**2
            if self.optimizer.name != "sgd" and steps:
                beta1, beta2 = value("betas")
                unbiased = momentum / (1 - beta1 ** len(steps))
                scale = (second / (1 - beta2 ** len(steps))).sqrt() + value("eps")
                momentum = unbiased / scale
            result[name] = momentum
        return result

    def update(self, parts: Sequence[Weights]) -> None:
        """W_{t+1} by torch's own optimizer, from the mean of the gradients ``parts``."""
        names = self.versions[0]
        self.gradients.append(
            {
                name: torch.stack([part[name] for part in parts]).mean(0)
                for name in names
                if all(name in part for part in parts)
            }
        )
        if not names:
            self.versions.append({})
            return
        # All updates are done anew from W_0, so that the optimizer's state is what it should be.
        weights = {name: weight.clone().requires_grad_() for name, weight in names.items()}
        optimizer = build_optimizer(self.optimizer, list(weights.values()), fused=False)
        for gradient in self.gradients:
            for name, weight in weights.items():
                weight.grad = gradient[name].clone() if name in gradient else None
            optimizer.step()
        self.versions.append({name: weight.detach() for name, weight in weights.items()})


@dataclass
class _Passed:
    """A forward that waits for its backward."""

    weights: Weights
    received: dict[StageOutput, Tensor]
    outputs: Sequence[Tensor]
    loss: Tensor | None


@dataclass(frozen=True)
class ReferenceResult:
    """All parameters and buffers by name, and the loss of every part."""

    state: dict[str, Tensor]
    losses: dict[Part, float]


def run_reference(
    captured: CapturedModel,
    placement: Placement,
    minibatches: Minibatches,
    count: int,
    *,
    method: Method,
    optimizer: OptimizerSpec,
    seed: int = 0,
) -> ReferenceResult:
    """Train on ``count`` minibatches as ``placement`` would, in this process."""
    minibatches = replace(minibatches, microbatches=method.microbatches)
    pipeline = placement.pipeline(captured.graph)
    schedule = build_schedule(pipeline, count, method.schedule, method.microbatches)
    model = captured
    if method.microbatches > 1:
        model = capture_microbatch(captured, method.microbatches)
    stages = [
        _Stage(
            program,
            [{name: captured.state[name].detach().clone() for name in program.weight_names}],
            optimizer,
        )
        for program in cut_stages(model, placement)
    ]
    values = captured.state | captured.constants
    buffers = {
        worker: {
            name: values[name].clone()
            for name in stages[pipeline.stage_of(worker)].program.buffer_names
        }
        for worker in pipeline.workers
    }
    versions = {worker: weight_versions(schedule, worker) for worker in pipeline.workers}
    activations: dict[tuple[Part, StageOutput], Tensor] = {}
    gradients: dict[tuple[Part, StageOutput], Tensor] = {}
    passed: dict[tuple[int, Part], _Passed] = {}
    pending: defaultdict[int, list[Weights]] = defaultdict(list)
    losses: dict[Part, float] = {}
    for worker, action in in_order(schedule):
        index = pipeline.stage_of(worker)
        stage = stages[index]
        match action:
            case Forward(minibatch, microbatch):
                part = (minibatch, microbatch)
                counted = versions[worker][part]
                weights = stage.versions[counted.forward]
                if method.policy == "pipeoptim":
                    direction = stage.direction(counted.forward)
                    scale = optimizer.value("lr") * counted.difference
                    weights = {n: w - scale * direction[n] for n, w in weights.items()}
                result = _forward(
                    stage.program,
                    {name: weight.clone() for name, weight in weights.items()},
                    buffers[worker],
                    minibatches,
                    part,
                    activations,
                    seed,
                    model.loss if index == len(stages) - 1 else None,
                )
                passed[worker, part] = result
                for output, tensor in enumerate(result.outputs):
                    activations[part, StageOutput(index, output)] = tensor.detach()
                if result.loss is not None:
                    losses[part] = result.loss.item()
            case Backward(minibatch, microbatch):
                part = (minibatch, microbatch)
                newest = stage.versions[versions[worker][part].backward]
                if method.policy in {"vanilla", "pipeoptim"}:
                    _overwrite(passed[worker, part].weights, newest)
                found = _backward(passed.pop((worker, part)), part, index, gradients)
                pending[worker].append(found)
            case AllReduce(version, workers):
                parts = [part for member in workers for part in pending.pop(member, [])]
                stage.collected.setdefault(version, parts)
            case Update(version, contributions) if version == len(stage.versions):
                parts = stage.collected.pop(version, []) or pending.pop(worker)
                assert len(parts) == contributions
                stage.update(parts)
    state = dict(captured.state)
    for index, stage in enumerate(stages):
        state |= stage.versions[-1] | buffers[pipeline.stages[index][0]]
    for alias, name in captured.aliases.items():
        state[alias] = state[name]
    return ReferenceResult(state, losses)


def _forward(
    program: StageProgram,
    weights: Weights,
    buffers: Weights,
    minibatches: Minibatches,
    part: Part,
    activations: Mapping[tuple[Part, StageOutput], Tensor],
    seed: int,
    loss: fx.GraphModule | None,
) -> _Passed:
    """Forward with a private copy of the weights."""
    inputs = minibatches.inputs(part)
    received: dict[StageOutput, Tensor] = {}
    for weight in weights.values():
        weight.requires_grad_()

    def value(argument: Argument) -> Tensor:
        match argument:
            case Weight(name):
                return weights[name]
            case Buffer(name):
                return buffers[name]
            case ModelInput(index):
                return inputs[index]
            case StageOutput(stage, index) if stage == program.stage:
                return outputs[index]
            case StageOutput():
                if argument not in received:
                    tensor = activations[part, argument].clone()
                    received[argument] = tensor.requires_grad_(
                        tensor.is_floating_point() or tensor.is_complex()
                    )
                return received[argument]

    torch.manual_seed(seed_for(seed, program.stage, part))
    outputs = program.function(*(value(argument) for argument in program.arguments))
    lost = None
    if loss is not None:
        lost = loss(*(value(result) for result in program.results), minibatches.targets(part))
    return _Passed(weights, received, outputs, lost)


def _overwrite(weights: Weights, values: Weights) -> None:
    """Give a backward other weights than its forward: those that autograd saved are replaced."""
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(weights.values())):
        for name, weight in weights.items():
            weight.copy_(values[name])


def _backward(
    passed: _Passed,
    part: Part,
    stage: int,
    gradients: dict[tuple[Part, StageOutput], Tensor],
) -> Weights:
    """Gradients of the weights; those of what was received are added to ``gradients``."""
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
