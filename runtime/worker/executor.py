"""Performing the actions of one worker: the loop, what each kind of action is, and sums of ties."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.runtime.comm.messages import Mailbox
from drlpp.runtime.device.clocks import Clock
from drlpp.runtime.device.emulation import EmulatedAccelerator
from drlpp.runtime.stage.gradients import squared_norm_of
from drlpp.runtime.stage.stage_runner import EvaluationRunner, StageRunner
from drlpp.runtime.stage.stages import StageOutput
from drlpp.runtime.stage.weight_group import OWN
from drlpp.schedule.actions import (
    TIED_PAYLOADS,
    Action,
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Message,
    MicrobatchId,
    Receive,
    Recompute,
    Send,
    TiedUpdate,
    Update,
)

Runner = StageRunner | EvaluationRunner
"""A stage whose forwards are performed, in training or in evaluation mode."""


@dataclass(kw_only=True)
class Executor:
    """Performs the actions of one worker: of a training, or the forwards of an evaluation.

    Minibatches are done when an update contains them; in an evaluation, when they have passed.

    Attributes:
        runners: the worker's stages.
        mailbox: its messages.
        clock: of this run; says when the device performed the actions.
        on_progress: called with the number of minibatches that are done.
        everyone: the group of all workers of the placement; None in an evaluation.
        leads: whether this replica's gradients stand for the stage's in a norm over all.
        speed: of the worker; below 1 it sleeps after computing, as if it took so much longer.
    """

    runners: Sequence[Runner]
    mailbox: Mailbox
    clock: Clock
    on_progress: Callable[[int], None]
    everyone: dist.ProcessGroup | None = None
    leads: bool
    speed: float = 1.0
    _received: dict[Message, list[Tensor]] = field(default_factory=dict)
    _outgoing: dict[Message, list[Tensor]] = field(default_factory=dict)
    _summed_next: frozenset[MicrobatchId] = frozenset()
    _last_of: Mapping[int, int] = field(default_factory=dict)
    _tied: TiedSums = field(init=False)

    def run(self, actions: Sequence[Action]) -> list[tuple[float, float]]:
        """Perform all actions.

        Returns:
            Begin and end of every action, in seconds of ``time.perf_counter``, which all
            processes of a machine share.
        """
        if self.everyone is not None:
            self._prepare_training(actions)
        emulated = EmulatedAccelerator(self.speed)
        for action in actions:
            if isinstance(action, Forward):
                # Before the clock starts: whoever waits for data does not compute.
                runner = self.runners[action.chunk]
                if runner.program.reads_data:
                    runner.minibatches.wait_for(action.minibatch)
            self.clock.mark()
            if action.span.computes:
                emulated.begin()
            self._perform(action)
            if action.span.computes:
                emulated.rest()
            self.clock.mark()
        self.mailbox.drain()
        moments = self.clock.moments()
        return list(zip(moments[::2], moments[1::2], strict=True))

    def _prepare_training(self, actions: Sequence[Action]) -> None:
        self._summed_next = _last_before_sums(actions)
        self._last_of = {a.version: a.through - 1 for a in actions if isinstance(a, Update)}
        self._tied = TiedSums(self._trained, self._received.pop)

    def _perform(self, action: Action) -> None:
        match action:
            case Receive(message, _):
                self._received[message] = self.mailbox.receive(action)
            case Send(message, _) if message.payload in TIED_PAYLOADS:
                self.mailbox.send(action, self._tied.to_send(message))
            case Send(message, _):
                self.mailbox.send(action, self._outgoing.pop(message))
            case Forward(minibatch):
                self._forward(action)
                if self.everyone is None and action.chunk == len(self.runners) - 1:
                    self.on_progress(minibatch + 1)
            case Recompute():
                self._trained[action.chunk].recompute(action.part)
            case Backward():
                runner, part = self._trained[action.chunk], action.part
                last = part in self._summed_next
                found = runner.backward(part, self._arrived(runner, part), last=last)
                self._send_back(runner, part, found)
            case BackwardInput():
                runner, part = self._trained[action.chunk], action.part
                found = runner.backward_input(part, self._arrived(runner, part))
                self._send_back(runner, part, found)
            case BackwardWeight():
                self._trained[action.chunk].backward_weight(action.part)
            case AllReduce(_, _, "gradients"):
                self._trained[0].weights.gradients[OWN].finish_sum()
            case AllReduce(_, _, "tied_gradients", tie):
                self._tied.sum_over_replicas(tie)
            case AllReduce(version, _, "squared_norm"):
                self._share_squared_norm(version)
            case TiedUpdate():
                self._tied.update(action, self._trained[action.chunk].program.stage)
            case Update(_, contributions, through):
                for runner in self._trained:
                    runner.update(contributions)
                self._tied.forget()
                self.on_progress(through)

    @property
    def _trained(self) -> Sequence[StageRunner]:
        """The runners of a training."""
        return cast(Sequence[StageRunner], self.runners)

    def _forward(self, forward: Forward) -> None:
        part, runner = forward.part, self.runners[forward.chunk]
        program = runner.program
        received: dict[StageOutput, Tensor] = {}
        for source, contents in program.receives.items():
            tensors = self._received.pop(Message("activation", source, program.stage, *part))
            for (index, _), tensor in zip(contents, tensors, strict=True):
                received[StageOutput(source, index)] = tensor
        outputs = runner.forward(part, received)
        for target, contents in program.sends.items():
            message = Message("activation", program.stage, target, *part)
            self._pass_on(message, [outputs[index] for index, _ in contents])

    def _pass_on(self, message: Message, tensors: list[Tensor]) -> None:
        """Keep what is to be sent, or hand it to the worker's other stage."""
        if any(runner.program.stage == message.target_stage for runner in self.runners):
            self._received[message] = [tensor.detach() for tensor in tensors]
        else:
            self._outgoing[message] = tensors

    def _share_squared_norm(self, version: int) -> None:
        """Sum the squared norm of the gradients over all stages, for the update to ``version``.

        It is not finite on any stage if a gradient of one of them is not.
        """
        own = 0.0
        if self.leads:
            own = self._tied.squared_norm(self._last_of[version])
            own += sum(runner.weights.gradients[OWN].squared_norm() for runner in self._trained)
        total = torch.tensor([own], dtype=torch.float64)
        assert self.everyone is not None
        self.everyone.allreduce([total]).wait()
        for runner in self._trained:
            runner.squared_norm = total.item()

    def _arrived(self, runner: StageRunner, part: MicrobatchId) -> dict[int, Tensor]:
        """Return the gradients that later stages sent, by output."""
        program = runner.program
        gradients: dict[int, Tensor] = {}
        for target, contents in program.sends.items():
            floating = [index for index, spec in contents if spec.differentiable]
            if not floating:
                continue
            tensors = self._received.pop(Message("gradient", target, program.stage, *part))
            for index, tensor in zip(floating, tensors, strict=True):
                # An output that several stages read gets the sum of their gradients.
                gradients[index] = gradients[index] + tensor if index in gradients else tensor
        return gradients

    def _send_back(
        self, runner: StageRunner, part: MicrobatchId, found: Mapping[StageOutput, Tensor]
    ) -> None:
        program = runner.program
        for source, contents in program.receives.items():
            message = Message("gradient", program.stage, source, *part)
            keys = [StageOutput(source, index) for index, _ in contents]
            tensors = [found[key] for key in keys if key in found]
            if tensors:
                self._pass_on(message, tensors)


def _last_before_sums(actions: Sequence[Action]) -> frozenset[MicrobatchId]:
    """Return the parts whose backward is the last before gradients are summed over the replicas."""
    found: set[MicrobatchId] = set()
    last: MicrobatchId | None = None
    for action in actions:
        match action:
            case Backward(minibatch, microbatch):
                last = (minibatch, microbatch)
            case AllReduce(_, _, "gradients") if last is not None:
                found.add(last)
            case Update():
                last = None
    return frozenset(found)


class TiedSums:
    """Gradients of tied weights over stages: what a worker sends, and what it updates by.

    Contributions and sums of one worker, between a stage's backwards and its update.
    """

    def __init__(
        self, runners: Iterable[StageRunner], take: Callable[[Message], list[Tensor]]
    ) -> None:
        self._runners = {runner.program.stage: runner for runner in runners}
        self._take = take
        self._contributions: dict[tuple[int, int], list[Tensor]] = {}
        self._totals: dict[tuple[int, int], list[Tensor]] = {}

    def sum_over_replicas(self, tie: int) -> None:
        """Sum the gradients of a copy over the replicas of its stage, for its next update."""
        (stage,) = self._runners
        self._runners[stage].weights.gradients[tie].finish_sum()
        # Not every replica has to send it, but all begin anew.
        self._contribution(stage, tie)

    def to_send(self, message: Message) -> list[Tensor]:
        """Return what a message of a tie contains."""
        stage, tie = message.source_stage, message.microbatch
        if message.payload == "contribution":
            return self._contribution(stage, tie)
        return self._total(stage, tie, message.minibatch)

    def update(self, update: TiedUpdate, stage: int) -> None:
        """Update the copy of a stage."""
        total = self._total(stage, update.tie, update.through - 1)
        self._runners[stage].update_tied(update.tie, total, update.contributions)

    def squared_norm(self, last: int) -> float:
        """Return what ties add to the norm over all stages: on all replicas of their root."""
        return sum(
            squared_norm_of(self._total(stage, tie, last)[:-1])
            for stage, runner in self._runners.items()
            for tie in runner.weights.ties
            if runner.weights.is_root(tie)
        )

    def forget(self) -> None:
        """Note that the update is made."""
        self._contributions.clear()
        self._totals.clear()

    def _contribution(self, stage: int, tie: int) -> list[Tensor]:
        key = stage, tie
        if key not in self._contributions:
            self._contributions[key] = self._runners[stage].weights.contribution(tie)
        return self._contributions[key]

    def _total(self, stage: int, tie: int, last: int) -> list[Tensor]:
        plan = self._runners[stage].weights.plans[tie]
        assert plan.root is not None
        if stage != plan.root:
            if plan.root in self._runners:
                return self._total(plan.root, tie, last)
            return self._take(Message("sum", plan.root, stage, last, tie))
        key = stage, tie
        if key not in self._totals:
            total = self._contribution(stage, tie)
            for other in plan.others:
                # It may be on this worker.
                own = other in self._runners
                message = Message("contribution", other, stage, last, tie)
                more = self._contribution(other, tie) if own else self._take(message)
                total = _added(total, more, None if own else more)
            # Nobody asks for the root's again.
            del self._contributions[key]
            self._totals[key] = total
        return self._totals[key]


def _added(
    total: Sequence[Tensor], more: Sequence[Tensor], into: Sequence[Tensor] | None
) -> list[Tensor]:
    # Autograd may have given what was found here to others; what a message brought is ours.
    places: Sequence[Tensor | None] = into or [None] * len(total)
    return [torch.add(*pair, out=place) for *pair, place in zip(total, more, places, strict=True)]
