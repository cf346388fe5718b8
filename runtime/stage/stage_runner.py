"""Running one stage, in training and in evaluation, without any communication."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drlpp.capturing.graph import TensorSpec
from drlpp.errors import NotFinite
from drlpp.runtime.device.devices import CPU
from drlpp.runtime.ipc.protocol import RunPlan
from drlpp.runtime.stage.gradients import SumOverReplicas
from drlpp.runtime.stage.minibatches import MinibatchSource
from drlpp.runtime.stage.passes.operators import begin_pass, passes_in
from drlpp.runtime.stage.passes.passes import InFlight, Received, StageValues, as_sent
from drlpp.runtime.stage.passes.split_backward import SplitBackward
from drlpp.runtime.stage.stage_weights import StageWeights
from drlpp.runtime.stage.stages import Buffer, StageOutput, StageProgram
from drlpp.runtime.stage.weight_group import OWN, weight_groups
from drlpp.runtime.weights.optimizers import OptimizerState
from drlpp.runtime.weights.policies import Vanilla
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

if TYPE_CHECKING:
    from drlpp.runtime.stage.compiling import CompiledStage


_MOST_ON_DEVICE = 64


class Losses:
    """Collects the loss of every part without waiting for the device that computes it.

    Attributes:
        not_finite: the first that was read which is infinite or not a number, and its part. A
            processor's losses are read at once, a GPU's some time later.
    """

    def __init__(self) -> None:
        self.not_finite: tuple[MicrobatchId, float] | None = None
        self._known: dict[MicrobatchId, float] = {}
        self._pending: dict[MicrobatchId, Tensor] = {}
        self._told = 0

    def add(self, part: MicrobatchId, loss: Tensor) -> None:
        """Note a loss, a single number."""
        if loss.device.type == "cpu":
            self._note(part, loss.item())
            return
        self._pending[part] = loss.detach()
        if len(self._pending) >= _MOST_ON_DEVICE:
            self._read()

    def new(self) -> dict[MicrobatchId, float]:
        """Return the losses that were noted since the last time."""
        self._read()
        found = dict(islice(self._known.items(), self._told, None))
        self._told = len(self._known)
        return found

    def take(self) -> dict[MicrobatchId, float]:
        """Return all losses; from now on others are collected."""
        self._read()
        taken, self._known = self._known, {}
        self.not_finite, self._told = None, 0
        return taken

    def _read(self) -> None:
        if self._pending:
            values = torch.stack(list(self._pending.values())).tolist()
            for part, value in zip(self._pending, values, strict=True):
                self._note(part, value)
            self._pending.clear()

    def _note(self, part: MicrobatchId, value: float) -> None:
        self._known[part] = value
        if self.not_finite is None and not math.isfinite(value):
            self.not_finite = part, value


@dataclass
class StageRunner:
    """One stage on one worker.

    Attributes:
        program: the stage.
        state: initial values of all parameters and buffers, by name; copied to ``device``.
        method: the weight policy, and how passes are computed.
        optimizer: what updates the weights.
        delays: s in steady state, of the weights that this stage alone holds (``OWN``), and of its
            copies of others, by tie.
        minibatches: where inputs and targets come from.
        sum_over_replicas: starts a sum over the replicas of the stage, None without replication.
        seed: of dropout.
        first_minibatch: how many minibatches came before this run; dropout continues from there.
        weights: those that this stage alone holds, and its copies of others.
        squared_norm: of all stages' gradients for the next update, where it is shared.
        losses: of the parts, on the last stage.
        skipped_updates: of this run, since their gradients were not finite.
        optimizer_state: of an earlier run, by parameter name.
        device: that everything is on; ``program`` is for it, ``minibatches`` give inputs and
            targets on it.
    """

    program: StageProgram
    state: Mapping[str, Tensor]
    method: Method
    optimizer: OptimizerSpec
    delays: Mapping[int, int]
    minibatches: MinibatchSource
    sum_over_replicas: SumOverReplicas | None = None
    seed: int = 0
    first_minibatch: int = 0
    optimizer_state: OptimizerState = field(default_factory=dict)
    device: torch.device = CPU

    def __post_init__(self) -> None:
        tied = {tie: list(self.program.ties[tie]) for tie in self.delays if tie != OWN}
        with_others = {name for names in tied.values() for name in names}
        alone = [name for name in self.program.weight_names if name not in with_others]
        names = {OWN: alone} | tied
        groups = []
        for tie, delay in self.delays.items():
            copies = {
                name: self._copy(name, torch.contiguous_format).requires_grad_()
                for name in names[tie]
            }
            groups += weight_groups(self.method, copies, self.optimizer, delay, tie)
        self.weights = StageWeights(
            self.program.stage,
            names,
            groups,
            self.method,
            self.optimizer_state,
            self.sum_over_replicas,
        )
        self.buffers = {name: self._copy(name) for name in self.program.buffer_names}
        self.squared_norm: float | None = None
        self._in_flight: dict[MicrobatchId, InFlight] = {}
        self._plan = RunPlan({})
        self._compiled: CompiledStage | None = None
        self.losses = Losses()
        self.peak_weight_bytes = 0
        self.skipped_updates = 0

    def _copy(
        self, name: str, memory_format: torch.memory_format = torch.preserve_format
    ) -> Tensor:
        value = self.state[name].detach()
        return value.to(self.device, copy=True, memory_format=memory_format)

    def compile(self) -> None:
        """Compile the stage for parts of the shape that it was captured for.

        Raises:
            CannotBeCompiled: the stage runs as it is.
        """
        # Whoever does not compile does without this import, which takes a second.
        from drlpp.runtime.stage.compiling import compiled

        program = self.program

        def example(spec: TensorSpec) -> Tensor:
            return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=self.device)

        values = self._values(
            {index: example(spec) for index, spec in program.inputs.items()},
            {
                StageOutput(stage, index): example(spec)
                for stage, specs in program.receives.items()
                for index, spec in specs
            },
            self.weights.newest,
            self.buffers,
        )
        same = not any(isinstance(policy, Vanilla) for policy in self.weights.policies)
        self._compiled = compiled(
            program,
            values,
            [example(spec) for spec in program.targets],
            self.method.precision,
            recomputes=same or self.method.recomputes(program.stage),
        )

    def begin(self, plan: RunPlan) -> None:
        """Prepare for a run."""
        self.weights.begin(plan)
        self._plan = plan
        self.peak_weight_bytes = 0
        self.skipped_updates = 0
        self._note_weight_bytes()

    def forward(self, part: MicrobatchId, received: Received) -> Mapping[int, Tensor]:
        """Perform the forward pass of ``part``.

        Returns:
            What other stages read, by output.
        """
        passed = InFlight(received)
        recomputed = part in self._plan.recomputed
        with self.weights.lent(part) as weights, torch.set_grad_enabled(not recomputed):
            outputs, loss = self._call(part, received, weights, self.buffers)
        if loss is not None:
            self.losses.add(part, loss)
            if self._plan.finite and (found := self.losses.not_finite):
                minibatch = self.first_minibatch + found[0][0]
                raise NotFinite(
                    f"the loss of minibatch {minibatch + 1} is {found[1]} (counted from 1 since "
                    "training began)",
                    minibatch,
                )
        if not recomputed:
            passed.keep(outputs, loss)
        self._in_flight[part] = passed
        return outputs

    def recompute(self, part: MicrobatchId) -> None:
        """Perform the forward pass of ``part`` once more, with the weights of its backward.

        So a stashed version is used again, a prediction is that for the backward, and PipeMare's
        discrepancy correction is applied (pipemare D.1, where τ_recomp = τ_bkwd).
        """
        passed = self._in_flight[part]
        # Running statistics have seen this part already.
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        with self.weights.lent(part, backward=True) as weights:
            passed.keep(*self._call(part, passed.received, weights, buffers))

    def _call(
        self,
        part: MicrobatchId,
        received: Received,
        weights: Sequence[Tensor],
        buffers: Mapping[str, Tensor],
    ) -> tuple[Mapping[int, Tensor], Tensor | None]:
        minibatch, microbatch = part
        program = self.program
        begin_pass(self.seed, (self.first_minibatch + minibatch, microbatch))
        inputs = {index: self.minibatches.input(index, part) for index in program.inputs}
        values = self._values(inputs, received, weights, buffers)
        targets = self.minibatches.targets(part) if program.loss is not None else ()
        if self._compiled is not None:
            sent, loss = self._compiled(values, targets)
            return as_sent(program, sent), loss
        with passes_in(self.method.precision, self.device):
            outputs, loss = values.call_with_loss(program, targets)
        return as_sent(program, outputs), loss

    def _values(
        self,
        inputs: Mapping[int, Tensor],
        received: Received,
        weights: Sequence[Tensor],
        buffers: Mapping[str, Tensor],
    ) -> StageValues:
        leaves = {
            key: value.requires_grad_(value.is_floating_point() or value.is_complex())
            for key, value in received.items()
        }
        by_name = dict(zip(self.weights.names, weights, strict=True))
        return StageValues(inputs, leaves, by_name, buffers)

    def backward(
        self, part: MicrobatchId, gradients: Mapping[int, Tensor], *, last: bool = False
    ) -> dict[StageOutput, Tensor]:
        """Perform the backward pass of ``part`` and add to the gradients of the next update.

        Args:
            part: what is processed.
            gradients: for outputs of this stage (by index) the sum of the gradients that the
                later stages sent, scaled as the loss is.
            last: whether the gradients are summed over the replicas next.

        Returns:
            Gradients of the floating-point tensors that the forward received, scaled the same way.
        """
        passed = self._in_flight.pop(part)
        ends, seeds = passed.ends(gradients, self.method.applied_loss_scale)
        leaves = list(passed.leaves.values())
        found: Sequence[Tensor | None] = [None] * (len(leaves) + len(self.weights.names))
        with (
            self.weights.lent(part, backward=True) as weights,
            self.weights.collecting(weights, last=last),
        ):
            if ends and (leaves or weights):
                found = torch.autograd.grad(ends, [*leaves, *weights], seeds, allow_unused=True)
            self.weights.add(found[len(leaves) :])
        self.weights.done_with(part)
        return passed.sent_back(found[: len(leaves)])

    def backward_input(
        self, part: MicrobatchId, gradients: Mapping[int, Tensor]
    ) -> dict[StageOutput, Tensor]:
        """Perform the half of a backward that gives the gradients of what the forward received.

        Arguments and result are those of :meth:`backward`.
        """
        passed = self._in_flight[part]
        ends, seeds = passed.ends(gradients, self.method.applied_loss_scale)
        with self.weights.lent(part, backward=True) as weights:
            passed.half_done = SplitBackward(ends, seeds, list(passed.leaves.values()), weights)
        # From here on autograd's graph alone keeps what the other half needs.
        passed.outputs, passed.loss = {}, None
        return passed.sent_back(passed.half_done.of_received)

    def backward_weight(self, part: MicrobatchId) -> None:
        """Perform the other half, and add to the gradients of the next update."""
        half_done = self._in_flight.pop(part).half_done
        assert half_done is not None, "the half for inputs comes first"
        with self.weights.lent(part, backward=True):
            self.weights.add(half_done.of_weights())
        self.weights.done_with(part)

    def update(self, contributions: int) -> None:
        """Update the stage's own weights with the mean of the gradients of ``contributions`` parts.

        Where the method skips updates, one whose gradients are not finite changes nothing.
        """
        squared_norm, self.squared_norm = self.squared_norm, None
        self.skipped_updates += not self.weights.update(contributions, squared_norm)
        # Versions are made here, and what a pass copies is kept until here.
        self._note_weight_bytes()

    def update_tied(self, tie: int, total: Sequence[Tensor], contributions: int) -> None:
        """Update the copy of the weights of a tie by a sum over its stages."""
        made = self.weights.update_by(tie, total, contributions, self.squared_norm)
        # With a norm over all stages, the stage's own update is skipped as well.
        if self.squared_norm is None and self.weights.is_root(tie):
            self.skipped_updates += not made
        self._note_weight_bytes()

    @property
    def changed_buffers(self) -> list[Tensor]:
        """What passes change, such as running statistics."""
        arguments = self.program.arguments
        names = dict.fromkeys(a.name for a in arguments if isinstance(a, Buffer) and a.changes)
        return [self.buffers[name] for name in names]

    def weights_and_buffers(self) -> dict[str, Tensor]:
        """Return current values by name."""
        return self.weights.state() | self.buffers

    def saved(self) -> tuple[dict[str, Tensor], OptimizerState]:
        """Return values by name, and what updates the weights."""
        optimizer: OptimizerState = {}
        for group in self.weights.groups:
            optimizer |= group.optimizer_state()
        return self.weights_and_buffers(), optimizer

    def _note_weight_bytes(self) -> None:
        self.peak_weight_bytes = max(self.peak_weight_bytes, self.weights.held_bytes())


@dataclass
class EvaluationRunner:
    """Forward passes of a stage in evaluation mode, on the weights of the runner that trains it."""

    program: StageProgram
    trained: StageRunner
    minibatches: MinibatchSource
    losses: Losses = field(default_factory=Losses)
    scores: dict[MicrobatchId, Tensor] = field(default_factory=dict)

    def forward(self, part: MicrobatchId, received: Received) -> Mapping[int, Tensor]:
        """Perform the forward pass of ``part``; nothing is kept for a backward."""
        program = self.program
        with torch.no_grad(), passes_in(self.trained.method.precision, self.trained.device):
            state = self.trained.weights_and_buffers()
            inputs = {i: self.minibatches.input(i, part) for i in program.inputs}
            values = StageValues(inputs, received, state, state)
            targets = self.minibatches.targets(part) if program.loss is not None else ()
            outputs, loss = values.call_with_loss(program, targets)
            if loss is not None:
                self.losses.add(part, loss)
            if program.score is not None:
                self.scores[part] = program.score(*values.results(program, outputs), *targets)
        return as_sent(program, outputs)
