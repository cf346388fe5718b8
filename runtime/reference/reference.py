"""The reference executor: one process, no communication, every version of the weights kept.

It replays the same schedule as the workers, with the formulas of the papers written down plainly
(:mod:`drlpp.runtime.reference.reference_weights`) and nothing fused, cached or overlapped. It is
the oracle of the runtime: after N minibatches the workers' weights must equal its weights to
rounding. Since it needs no worker for a stage, it also trains at depths that this machine has no
accelerators for.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter

from drlpp.capturing.capture import CapturedModel
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.run_commands import RunOptions
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.reference.random_delays import RandomDelays
from drlpp.runtime.reference.reference_weights import (
    StageHistory,
    Weights,
    with_stage_momentum,
)
from drlpp.runtime.stage.minibatches import Minibatches
from drlpp.runtime.stage.passes.passes import as_sent
from drlpp.runtime.stage.passes.precision import passes_in
from drlpp.runtime.stage.passes.randomness import begin_pass
from drlpp.runtime.stage.stages import Argument, Buffer, ModelInput, StageOutput, Weight
from drlpp.schedule.actions import (
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    MicrobatchId,
    Pass,
    Recompute,
    Update,
)
from drlpp.schedule.analysis.weight_versions import stage_delay
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import in_order
from drlpp.specs.optimizer_spec import OptimizerSpec


@dataclass
class _Passed:
    """A forward that waits for its backward, and then for its gradients to be taken."""

    weights: Weights
    received: dict[StageOutput, Tensor]
    outputs: Sequence[Tensor]
    loss: Tensor | None
    gradients: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class ReferenceResult:
    """All parameters and buffers by name, the loss of every part, every stage's skipped updates."""

    state: dict[str, Tensor]
    losses: dict[MicrobatchId, float]
    skipped_updates: tuple[int, ...]


def run_reference(
    captured: CapturedModel,
    placement: Placement,
    minibatches: Minibatches,
    count: int,
    *,
    method: Method,
    optimizer: OptimizerSpec,
    seed: int = 0,
    options: RunOptions | None = None,
    delays: RandomDelays | None = None,
) -> ReferenceResult:
    """Train on ``count`` minibatches as ``placement`` would, in this process."""
    executor = ReferenceExecutor(captured, placement, minibatches, method, optimizer, seed, delays)
    losses = executor.run(count, options)
    return ReferenceResult(executor.state(), losses, tuple(executor.skipped_updates))


class ReferenceExecutor:
    """A placement in this process, which can be run several times, the pipeline empty in between.

    Args:
        captured: the model.
        placement: valid for it.
        minibatches: where samples come from.
        method: schedule and weight policy.
        optimizer: makes the updates.
        seed: of dropout.
        delays: let every gradient that a stage computes be applied after a random delay, on top of
            what the method itself delays; with a method that flushes this is Hogwild-style
            asynchrony (pipemare, appendix E).

    Attributes:
        skipped_updates: of every stage so far, whose gradients were not finite in float16.
    """

    def __init__(
        self,
        captured: CapturedModel,
        placement: Placement,
        minibatches: Minibatches,
        method: Method,
        optimizer: OptimizerSpec,
        seed: int = 0,
        delays: RandomDelays | None = None,
    ) -> None:
        self._captured = captured
        accelerators = 1 + max(placement.accelerators, default=-1)
        self._plan = ExecutionPlan.of(Candidate(placement, method), captured.graph, accelerators)
        self._pipeline = self._plan.pipeline
        self._minibatches = replace(minibatches, microbatches=method.microbatches)
        self._rate = float(optimizer.value("lr"))
        self._seed = seed
        model = captured.microbatch(method.microbatches)
        self._loss = model.loss
        self._programs = cut_stages(model, placement)
        self._round_trip = 1 + method.minibatches_in_flight(self._pipeline)
        # Counted, where workers have a formula for it.
        steady = self._plan.schedule(2 * self._round_trip * method.accumulate)
        self._delays = [stage_delay(steady, stage) for stage in range(len(self._programs))]
        self._stages = [
            StageHistory(
                {name: captured.state[name] for name in program.weight_names},
                method,
                with_stage_momentum(optimizer, method, delay, max(self._delays)),
                delay,
            )
            for program, delay in zip(self._programs, self._delays, strict=True)
        ]
        self._arriving = [
            _DelayedGradients(delays, stage) if delays else None
            for stage in range(len(self._programs))
        ]
        values = captured.state | captured.constants
        self.skipped_updates = [0] * len(self._programs)
        self._buffers = {
            worker: {
                name: values[name].clone()
                for stage in self._pipeline.stages_of(worker)
                for name in self._programs[stage].buffer_names
            }
            for worker in self._pipeline.workers
        }

    def run(self, count: int, options: RunOptions | None = None) -> dict[MicrobatchId, float]:
        """Train on ``count`` minibatches and return the loss of every part."""
        options = options or RunOptions()
        for stage in self._stages:
            stage.begin()
        plan = self._plan.synchronous if options.synchronous else self._plan
        minibatches = self._minibatches
        if options.order is not None:
            minibatches = replace(minibatches, order=options.order)
        return _Replay(self, plan, count, options, minibatches).run()

    def state(self) -> dict[str, Tensor]:
        """Return all parameters and buffers by name; of replicas, the first one's buffers."""
        state = dict(self._captured.state)
        for index, stage in enumerate(self._stages):
            leader = self._pipeline.stages[index][0]
            found = stage.versions[stage.newest] | self._buffers[leader]
            state |= {name: value for name, value in found.items() if name in state}
        for alias, name in self._captured.aliases.items():
            state[alias] = state[name]
        return state


class _Replay:
    """One run of a reference executor."""

    def __init__(
        self,
        executor: ReferenceExecutor,
        plan: ExecutionPlan,
        count: int,
        options: RunOptions,
        minibatches: Minibatches,
    ) -> None:
        self._executor = executor
        self._schedule = plan.schedule(count)
        self._method = plan.method
        self._options = options
        self._minibatches = minibatches
        self._uses = plan.weight_uses(count)
        self._rates = [self._rates_of(stage) for stage in range(len(executor._stages))]
        self._passed: dict[tuple[int, int, MicrobatchId], _Passed] = {}
        self._activations: dict[MicrobatchId, dict[StageOutput, Tensor]] = defaultdict(dict)
        self._gradients: dict[tuple[MicrobatchId, StageOutput], Tensor] = {}
        # For every stage and update, what its replicas found.
        self._pending: dict[int, list[Weights]] = defaultdict(list)
        self._norms: dict[int, Tensor] = {}
        self._losses: dict[MicrobatchId, float] = {}
        stages = len(executor._programs)
        self._stages_left: dict[MicrobatchId, int] = defaultdict(lambda: stages)

    def _rates_of(self, stage: int) -> list[float]:
        """Return the rate of every update; T1: α_base / τ^p, p = 1 − min(k/K, 1) (eq. 4)."""
        base = self._options.rates or [self._executor._rate]
        worker = self._schedule.pipeline.stages[stage][0]
        rates, first = [], 0
        for action in self._schedule.actions[worker]:
            if isinstance(action, Update):
                rate = base[min(action.through, len(base)) - 1]
                annealing = self._method.annealing_minibatches
                if annealing:
                    step = self._options.asynchronous_before + first
                    power = 1 - min(step / annealing, 1)
                    delay = 1 + self._executor._delays[stage]
                    rate = rate / delay**power
                rates.append(rate)
                first = action.through
        return rates

    def run(self) -> dict[MicrobatchId, float]:
        """Replay all actions."""
        for worker, action in in_order(self._schedule):
            stages = self._schedule.pipeline.stages_of(worker)
            stage = stages[action.chunk if isinstance(action, Pass) else 0]
            match action:
                case Forward():
                    self._forward(worker, stage, action.part)
                case Recompute():
                    self._recompute(worker, stage, action.part)
                case Backward():
                    self._backward(worker, stage, action.part)
                    self._contribute(worker, stage, action.part)
                case BackwardInput():
                    # A whole one, whose gradients of weights wait for the other half.
                    self._backward(worker, stage, action.part)
                case BackwardWeight():
                    self._contribute(worker, stage, action.part)
                case AllReduce(version, _, "squared_norm") if version not in self._norms:
                    mean = [g for k in list(self._pending) for g in self._mean(k).values()]
                    self._norms = {version: _norm(mean)}
                case Update(version, contributions):
                    for stage in stages:
                        self._update(stage, version, contributions)
        return self._losses

    def _forward(self, worker: int, stage: int, part: MicrobatchId) -> None:
        history = self._executor._stages[stage]
        weights = history.for_forward(self._uses[worker][part], self._rates[stage])
        buffers = self._executor._buffers[worker]
        passed = self._call(stage, part, _private(weights), buffers)
        self._passed[worker, stage, part] = passed
        for output, tensor in enumerate(passed.outputs):
            self._activations[part][StageOutput(stage, output)] = tensor.detach()
        if passed.loss is not None:
            self._losses[part] = passed.loss.item()

    def _recompute(self, worker: int, stage: int, part: MicrobatchId) -> None:
        """Perform the forward again, with the weights of the backward."""
        history = self._executor._stages[stage]
        weights = history.for_backward(self._uses[worker][part], self._rates[stage])
        buffers = {n: b.clone() for n, b in self._executor._buffers[worker].items()}
        self._passed[worker, stage, part] = self._call(stage, part, _private(weights), buffers)

    def _call(self, stage: int, part: MicrobatchId, weights: Weights, buffers: Weights) -> _Passed:
        program = self._executor._programs[stage]
        inputs = self._minibatches.inputs(part)
        received: dict[StageOutput, Tensor] = {}

        def value(argument: Argument) -> Tensor:
            match argument:
                case Weight(name):
                    return weights[name]
                case Buffer(name):
                    return buffers[name]
                case ModelInput(index):
                    return inputs[index]
                case StageOutput(source, index) if source == stage:
                    return outputs[index]
                case StageOutput():
                    if argument not in received:
                        tensor = self._activations[part][argument].clone()
                        received[argument] = tensor.requires_grad_(
                            tensor.is_floating_point() or tensor.is_complex()
                        )
                    return received[argument]

        minibatch, microbatch = part
        begin_pass(self._executor._seed, (self._options.first_minibatch + minibatch, microbatch))
        lost = None
        with passes_in(self._method.precision):
            outputs = program.function(*(value(argument) for argument in program.arguments))
            if stage == len(self._executor._programs) - 1:
                results = [value(result) for result in program.results]
                lost = self._executor._loss(*results, self._minibatches.targets(part))
        return _Passed(weights, received, as_sent(program, outputs), lost)

    def _backward(self, worker: int, stage: int, part: MicrobatchId) -> None:
        passed = self._passed[worker, stage, part]
        weights = self._executor._stages[stage].for_backward(
            self._uses[worker][part], self._rates[stage]
        )
        # Other weights than its forward's: those that autograd saved are replaced.
        _overwrite(passed.weights, weights)
        if passed.loss is not None:
            passed.loss = passed.loss * self._method.applied_loss_scale
        found = _backward(passed, part, stage, self._gradients)
        scale = self._method.applied_loss_scale
        passed.gradients = {name: value / scale for name, value in found.items()}

    def _contribute(self, worker: int, stage: int, part: MicrobatchId) -> None:
        self._pending[stage].append(self._passed.pop((worker, stage, part)).gradients)
        self._stages_left[part] -= 1
        if not self._stages_left[part]:
            self._activations.pop(part, None)

    def _mean(self, stage: int) -> Weights:
        """Return the mean over contributions of the weights that all have a gradient for."""
        parts = self._pending[stage]
        if len(parts) == 1:
            return parts[0]
        names = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: torch.stack([part[name] for part in parts]).mean(0) for name in names}

    def _update(self, stage: int, version: int, contributions: int) -> None:
        history = self._executor._stages[stage]
        if version <= history.newest:
            return  # another replica's part of the same update
        assert len(self._pending[stage]) == contributions
        gradient = self._mean(stage)
        del self._pending[stage]
        # No part reaches back further than to the oldest version that one in flight has met.
        reach = 2 * self._method.accumulate + 2 * self._executor._round_trip
        needed_from = history.newest - reach
        norm = self._norms.get(version)
        if norm is None and self._method.needs_norm:
            norm = _norm(list(gradient.values()))
        if self._method.skips_updates and norm is not None and not norm.isfinite():
            self._executor.skipped_updates[stage] += 1
            history.skip_update(needed_from)
            return
        if self._method.clip_norm and norm is not None:
            scale = min(self._method.clip_norm / (norm + 1e-6), torch.tensor(1.0))
            gradient = {name: value * scale for name, value in gradient.items()}
        rate = self._rates[stage][version - 1]
        arriving = self._executor._arriving[stage]
        if arriving is not None:
            gradient, factor = arriving.next(gradient)
            rate *= factor
        history.update(gradient, rate, needed_from)


class _DelayedGradients:
    """The gradients of a stage on their way to its weights."""

    def __init__(self, delays: RandomDelays, stage: int) -> None:
        self._delays = delays
        self._stage = stage
        self._sampler = delays.sampler(stage)
        self._computed: deque[Weights] = deque(maxlen=delays.longest + 1)
        self._updates = 0

    def next(self, computed: Weights) -> tuple[Weights, float]:
        """Return the gradient that arrives when ``computed`` is sent off, and its T1 factor."""
        self._computed.append(computed)
        delay = min(self._sampler.draw(), len(self._computed) - 1)
        factor = self._delays.rate_factor(self._stage, self._updates)
        self._updates += 1
        return self._computed[-1 - delay], factor


def _private(weights: Weights) -> Weights:
    """Return copies that a pass may keep and change."""
    return {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.tensor(0.0)


def _overwrite(weights: Weights, values: Weights) -> None:
    with torch.no_grad(), _unsafe_preserve_version_counter(tuple(weights.values())):
        for name, weight in weights.items():
            weight.copy_(values[name])


def _backward(
    passed: _Passed,
    part: MicrobatchId,
    stage: int,
    gradients: dict[tuple[MicrobatchId, StageOutput], Tensor],
) -> Weights:
    """Return gradients of the weights; add those of what was received to ``gradients``."""
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
