"""The reference executor: one process, no communication, every version of the weights kept.

It replays the same schedule as the workers, with the formulas of the papers written down plainly
(:mod:`drlpp.runtime.reference.reference_weights`) and nothing fused, cached or overlapped. It is
the oracle of the runtime: after N minibatches the workers' weights must equal its weights to
rounding. Since it needs no worker for a stage, it also trains at depths that this machine has no
accelerators for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.deployment import RunOptions
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.reference.reference_weights import (
    DelayedGradients,
    Histories,
    ReferenceStage,
    StageHistory,
    Weights,
)
from drlpp.runtime.stage.minibatches import Minibatches
from drlpp.runtime.stage.passes.operators import begin_pass, passes_in
from drlpp.runtime.stage.passes.passes import StageValues, as_sent
from drlpp.runtime.stage.stages import StageOutput, StageProgram
from drlpp.schedule.actions import (
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    MicrobatchId,
    Pass,
    Recompute,
    TiedUpdate,
    Update,
)
from drlpp.schedule.analysis.weight_versions import stage_delay
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import in_order
from drlpp.schedule.ties import Tie, is_update
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import OptimizerSpec, settled


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
    delays: Sequence[DelayedGradients] | None = None,
) -> ReferenceExecutor:
    """Train on ``count`` minibatches as ``placement`` would, in this process."""
    executor = ReferenceExecutor(captured, placement, minibatches, method, optimizer, seed, delays)
    executor.run(count, options)
    return executor


@dataclass
class PassedForward:
    """A forward that waits for its backward, and then for its gradients to be taken."""

    weights: Weights
    received: dict[StageOutput, Tensor]
    outputs: Mapping[int, Tensor]
    loss: Tensor | None
    gradients: Weights = field(default_factory=dict)


class ReferenceExecutor:
    """A placement in this process, which can be run several times, the pipeline empty in between.

    Args:
        delays: of every stage, after which every gradient that it computes is applied, on top of
            what the method itself delays; with a method that flushes this is Hogwild-style
            asynchrony (pipemare, appendix E).

    Attributes:
        stages: in order, with their weights so far.
        buffers: of every worker, by name.
        losses: of every part of the last run.
    """

    def __init__(
        self,
        captured: CapturedModel,
        placement: Placement,
        minibatches: Minibatches,
        method: Method,
        optimizer: OptimizerSpec,
        seed: int = 0,
        delays: Sequence[DelayedGradients] | None = None,
    ) -> None:
        self._captured = captured
        optimizer = settled(optimizer, captured.trained, captured.aliases)
        accelerators = 1 + max(placement.accelerators, default=-1)
        self._plan = ExecutionPlan.of(Candidate(placement, method), captured.graph, accelerators)
        self._samples = replace(minibatches, microbatches=method.microbatches)
        stages = enumerate(cut_stages(captured.microbatch(method.microbatches), placement))
        self._rate, self._seed = optimizer.rate, seed
        self._round_trip = 1 + method.minibatches_in_flight(self._plan.pipeline)
        # Counted, where workers have a formula for it.
        steady = self._plan.schedule(2 * self._round_trip * method.accumulate)
        if delays and self._plan.ties:
            raise InvalidInput(
                "random delays are for stages that share no parameter; put the operators that "
                "share one into one stage"
            )

        def history(names: Collection[str], stage: int, tie: Tie | None = None) -> StageHistory:
            initial = {name: captured.state[name] for name in names}
            return StageHistory(initial, method, optimizer, stage_delay(steady, stage, tie))

        def histories(stage: int, program: StageProgram) -> Histories:
            workers = self._plan.pipeline.stages[stage]
            tied = {name for names in program.ties.values() for name in names}
            own = history([name for name in program.weight_names if name not in tied], stage)
            found: dict[Tie | None, dict[int, StageHistory]] = {None: dict.fromkeys(workers, own)}
            for tie in (tie for tie in self._plan.ties if stage in tie.stages):
                names = program.ties[tie.number]
                found[tie] = {worker: history(names, tie.root, tie) for worker in workers}
            return found

        self.stages = [
            ReferenceStage(program, histories(stage, program), delays[stage] if delays else None)
            for stage, program in stages
        ]
        values = captured.state | captured.constants
        self.buffers = {
            worker: {
                name: values[name].clone()
                for stage in self._plan.pipeline.stages_of(worker)
                for name in self.stages[stage].program.buffer_names
            }
            for worker in self._plan.pipeline.workers
        }

    @property
    def skipped_updates(self) -> tuple[int, ...]:
        """Updates of every stage so far, whose gradients were not finite in float16."""
        return tuple(stage.skipped_updates for stage in self.stages)

    def _begin(self, count: int, options: RunOptions) -> None:
        for first, *others in self._plan.pipeline.stages:
            for worker in others:
                self.buffers[worker] = {n: b.clone() for n, b in self.buffers[first].items()}
        for stage in self.stages:
            for history in chain(*(of.values() for of in stage.histories.values())):
                history.begin()
        plan = self._plan.synchronous if options.synchronous else self._plan
        self._schedule = plan.schedule(count)
        self._method = plan.method
        self._options = options
        self._minibatches = self._samples
        if options.order is not None:
            self._minibatches = replace(self._minibatches, order=options.order)
        self._ties = plan.ties
        self._uses = {tie: plan.weight_uses(count, tie) for tie in (None, *plan.ties)}
        self._rates = {
            (k, tie): self._rates_of(k, tie)
            for k, stage in enumerate(self.stages)
            for tie in stage.histories
        }
        self._passed: dict[tuple[int, int, MicrobatchId], PassedForward] = {}
        self._activations: dict[MicrobatchId, dict[StageOutput, Tensor]] = defaultdict(dict)
        self._gradients: dict[tuple[MicrobatchId, StageOutput], Tensor] = {}
        # For the next updates of every stage, of its own weights or its copies of a tie's: what
        # each part found.
        self._pending: dict[tuple[int, Tie | None], dict[MicrobatchId, Weights]] = {
            key: {} for key in self._rates
        }
        self._norms: dict[int, Tensor] = {}
        self.losses: dict[MicrobatchId, float] = {}
        self._stages_left: dict[MicrobatchId, int] = defaultdict(lambda: len(self.stages))

    def run(self, count: int, options: RunOptions | None = None) -> dict[MicrobatchId, float]:
        """Train on ``count`` minibatches and return the loss of every part."""
        self._begin(count, options or RunOptions())
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
                    mean = [g for k in range(len(self.stages)) for g in self._mean(k).values()]
                    for tie in self._ties:
                        mean += self._tied_gradient(tie, version).values()
                    self._norms = {version: _norm(mean)}
                case TiedUpdate(tie=tie, chunk=chunk):
                    self._update(worker, stages[chunk], action, self._ties[tie])
                case Update():
                    for stage in stages:
                        self._update(worker, stage, action)
        return self.losses

    @property
    def state(self) -> dict[str, Tensor]:
        """All parameters and buffers by name; of replicas, the first one's buffers."""
        state = dict(self._captured.state)
        for stage, replicas in zip(self.stages, self._plan.pipeline.stages, strict=True):
            found = dict(self.buffers[replicas[0]])
            for of in stage.histories.values():
                found |= of[replicas[0]].weights
            state |= {name: value for name, value in found.items() if name in state}
        for alias, name in self._captured.aliases.items():
            state[alias] = state[name]
        return state

    def _rates_of(self, stage: int, tie: Tie | None) -> list[float]:
        """Return the rate of every update; T1: α_base / τ^p, p = 1 − min(k/K, 1) (eq. 4)."""
        worker = self._schedule.pipeline.stages[stage][0]
        delay = 1 + self.stages[stage].histories[tie][worker].delay
        base = self._options.rates or [self._rate]
        rates, first = dict[int, float](), 0
        for action in self._schedule.actions[worker]:
            if is_update(action, tie):
                rate = base[min(action.through, len(base)) - 1]
                annealing = self._method.annealing_minibatches
                if annealing:
                    step = self._options.asynchronous_before + first
                    power = 1 - min(step / annealing, 1)
                    rate = rate / delay**power
                # Both of a worker's stages may have a copy.
                rates[action.version] = rate
                first = action.through
        return list(rates.values())

    def _forward(self, worker: int, stage: int, part: MicrobatchId) -> None:
        weights = self._lent(StageHistory.for_forward, worker, stage, part)
        buffers = self.buffers[worker]
        passed = self._passed[worker, stage, part] = self._call(stage, part, weights, buffers)
        for output, tensor in passed.outputs.items():
            self._activations[part][StageOutput(stage, output)] = tensor.detach()
        if passed.loss is not None:
            self.losses[part] = passed.loss.item()

    def _lent(
        self,
        lend: Callable[[StageHistory, WeightUse, Sequence[float]], Weights],
        worker: int,
        stage: int,
        part: MicrobatchId,
    ) -> Weights:
        """Return the stage's own weights and its copies of others for a pass of a part."""
        weights: Weights = {}
        for tie, of in self.stages[stage].histories.items():
            weights |= lend(of[worker], self._uses[tie][worker][part], self._rates[stage, tie])
        return weights

    def _recompute(self, worker: int, stage: int, part: MicrobatchId) -> None:
        """Perform the forward again, with the weights of the backward."""
        weights = self._lent(StageHistory.for_backward, worker, stage, part)
        buffers = {n: b.clone() for n, b in self.buffers[worker].items()}
        self._passed[worker, stage, part] = self._call(stage, part, weights, buffers)

    def _call(
        self, stage: int, part: MicrobatchId, weights: Weights, buffers: Weights
    ) -> PassedForward:
        program = self.stages[stage].program
        # Copies, which the pass may keep and change.
        weights = {name: w.detach().clone().requires_grad_() for name, w in weights.items()}
        received = {
            key: self._activations[part][key].clone()
            for key in (*program.arguments, *program.results)
            if isinstance(key, StageOutput) and key.stage != stage
        }
        for tensor in received.values():
            tensor.requires_grad_(tensor.is_floating_point() or tensor.is_complex())
        inputs = {index: self._minibatches.input(index, part) for index in program.inputs}
        minibatch, microbatch = part
        begin_pass(self._seed, (self._options.first_minibatch + minibatch, microbatch))
        with passes_in(self._method.precision):
            values = StageValues(inputs, received, weights, buffers)
            outputs, lost = values.call_with_loss(program, self._minibatches.targets(part))
        return PassedForward(weights, received, as_sent(program, outputs), lost)

    def _backward(self, worker: int, stage: int, part: MicrobatchId) -> None:
        passed, scale = self._passed[worker, stage, part], self._method.applied_loss_scale
        # The weights of the backward take the place of the forward's, which autograd saved.
        weights = self._lent(StageHistory.for_backward, worker, stage, part)
        with torch.no_grad(), _unsafe_preserve_version_counter(tuple(passed.weights.values())):
            for name, weight in passed.weights.items():
                weight.copy_(weights[name])
        ends: list[tuple[Tensor, Tensor | None]] = []
        if passed.loss is not None:
            ends.append((passed.loss * scale, None))
        for index, output in passed.outputs.items():
            gradient = self._gradients.pop((part, StageOutput(stage, index)), None)
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
                known = self._gradients.get((part, key))
                self._gradients[part, key] = gradient if known is None else known + gradient
        own = zip(passed.weights, found[len(received) :], strict=True)
        passed.gradients = {name: value / scale for name, value in own if value is not None}

    def _contribute(self, worker: int, stage: int, part: MicrobatchId) -> None:
        gradients = self._passed.pop((worker, stage, part)).gradients
        for tie, of in self.stages[stage].histories.items():
            names = [name for name in of[worker].initial if name in gradients]
            self._pending[stage, tie][part] = {name: gradients[name] for name in names}
        self._stages_left[part] -= 1
        if not self._stages_left[part]:
            self._activations.pop(part, None)

    def _mean(self, stage: int) -> Weights:
        return _mean([*self._pending[stage, None].values()])

    def _tied_gradient(self, tie: Tie, version: int) -> Weights:
        """Return the sum over the stages of a tie of the means of their gradients of an update.

        Update n is of the minibatches from number (n − 1)·together on.
        """
        minibatches = range((version - 1) * tie.together, version * tie.together)
        total: Weights = {}
        for stage in tie.stages:
            found = self._pending[stage, tie]
            of_stage = _mean([g for part, g in found.items() if part[0] in minibatches])
            for name, gradient in of_stage.items():
                total[name] = total[name] + gradient if name in total else gradient
        return total

    def _update(
        self, worker: int, stage: int, update: Update | TiedUpdate, tie: Tie | None = None
    ) -> None:
        """Make an update, if its gradients are finite."""
        held, version = self.stages[stage], update.version
        history = held.histories[tie][worker]
        if version <= history.newest:
            return  # another replica's part of the same update
        if tie is None:
            assert len(self._pending[stage, None]) == update.contributions
            gradient = self._mean(stage)
            self._pending[stage, None] = {}
        else:
            gradient = self._tied_gradient(tie, version)
            copies = [c for k in tie.stages for c in self.stages[k].histories[tie].values()]
            needed = tie.together * min(copy.newest for copy in copies)
            for key in ((k, tie) for k in tie.stages):
                found = self._pending[key].items()
                self._pending[key] = {part: g for part, g in found if part[0] >= needed}
        # Of all stages, where the schedule flushes.
        norm = self._norms.get(version)
        if norm is None and self._method.needs_norm:
            norm = _norm(list(gradient.values()))
        # No part reaches back further than to the oldest version that one in flight has met.
        needed_from = history.newest - 2 * self._method.accumulate - 2 * self._round_trip
        if self._method.skips_updates and norm is not None and not norm.isfinite():
            history.skip_update(needed_from)
            # Of a tie's copies one counts, and none where all stages skip the same updates.
            root = tie and (tie.root, self._schedule.pipeline.stages[tie.root][0])
            if root is None or ((stage, worker) == root and not self._schedule.flushes):
                held.skipped_updates += 1
            return
        if self._method.clip_norm and norm is not None:
            scale = min(self._method.clip_norm / (norm + 1e-6), torch.tensor(1.0))
            gradient = {name: value * scale for name, value in gradient.items()}
        rate = self._rates[stage, tie][version - 1]
        if held.arriving is not None:
            gradient, factor = held.arriving.next(gradient)
            rate *= factor
        history.update(gradient, rate, needed_from)


def _mean(parts: Sequence[Weights]) -> Weights:
    """Return the mean over contributions of the weights that all have a gradient for."""
    if len(parts) == 1:
        return parts[0]
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: torch.stack([part[name] for part in parts]).mean(0) for name in names}


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.tensor(0.0)
