"""Performing the actions of one worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from drlpp.runtime.comm.mailbox import Mailbox
from drlpp.runtime.device.clocks import Clock
from drlpp.runtime.device.emulation import EmulatedAccelerator
from drlpp.runtime.stage.evaluation_runner import EvaluationRunner
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.stage.stages import StageOutput
from drlpp.schedule.schedule import (
    Action,
    AllReduce,
    Backward,
    Forward,
    Message,
    Part,
    Receive,
    Recompute,
    Send,
    Update,
)


@dataclass
class Executor:
    """Executes a schedule's actions on one worker.

    Attributes:
        runner: the worker's stage.
        mailbox: its messages.
        everyone: the group of all workers of the placement.
        clock: of this run; says when the device performed the actions.
        on_progress: called after every update with the minibatches that the weights contain, and
            in an evaluation after every forward with those that are done.
        speed: of the worker; below 1 it sleeps after computing, as if it took so much longer.
        received: messages that have arrived and were not used yet.
        processor_seconds: that computing took in every action of the run, without any rest.
    """

    runner: StageRunner | EvaluationRunner
    mailbox: Mailbox
    everyone: dist.ProcessGroup
    clock: Clock
    on_progress: Callable[[int], None]
    speed: float = 1.0
    received: dict[Message, list[Tensor]] = field(default_factory=dict)
    processor_seconds: list[float] = field(default_factory=list)
    _outgoing: dict[Message, list[Tensor]] = field(default_factory=dict)
    _summed_next: frozenset[Part] = frozenset()

    def run(self, actions: Sequence[Action]) -> list[tuple[float, float]]:
        """Perform all actions.

        Returns:
            Begin and end of every action, in seconds of ``time.perf_counter``, which all
            processes of a machine share.
        """
        self._summed_next = _last_before_sums(actions)
        emulated = EmulatedAccelerator(self.speed)
        if isinstance(self.runner, StageRunner):
            self.runner.policy.clock = self.clock
        spans = []
        for action in actions:
            if isinstance(action, Forward):
                # Before the clock starts: whoever waits for data does not compute.
                self.runner.wait_for(action.minibatch)
            begin = self.clock.mark()
            if isinstance(action, Forward | Recompute | Backward | Update):
                emulated.begin()
                self.perform(action)
                self.processor_seconds.append(emulated.rest())
            else:
                self.perform(action)
                self.processor_seconds.append(0.0)
            spans.append((begin, self.clock.mark()))
        self.mailbox.drain()
        return self.clock.read(spans)

    @property
    def _trained(self) -> StageRunner:
        assert isinstance(self.runner, StageRunner)
        return self.runner

    def perform(self, action: Action) -> None:
        """Perform one action."""
        match action:
            case Receive(message, _):
                self.received[message] = self.mailbox.receive(action)
            case Forward(minibatch, microbatch):
                self._forward((minibatch, microbatch))
            case Send(message, _):
                self.mailbox.send(action, self._outgoing.pop(message))
            case Recompute(minibatch, microbatch):
                self._trained.recompute((minibatch, microbatch))
            case Backward(minibatch, microbatch):
                self._backward((minibatch, microbatch))
            case AllReduce(_, _, "gradients"):
                self._trained.finish_sum()
            case AllReduce(_, _, "squared_norm"):
                self._trained.share_squared_norm(
                    lambda total: self.everyone.allreduce([total]).wait()
                )
            case Update(_, contributions, through):
                self._trained.update(contributions)
                self.on_progress(through)

    def _forward(self, part: Part) -> None:
        program = self.runner.program
        received: dict[StageOutput, Tensor] = {}
        for source, contents in program.receives.items():
            tensors = self.received.pop(Message("activation", source, program.stage, *part))
            for (index, _), tensor in zip(contents, tensors, strict=True):
                received[StageOutput(source, index)] = tensor
        outputs = self.runner.forward(part, received)
        for target, contents in program.sends.items():
            message = Message("activation", program.stage, target, *part)
            self._outgoing[message] = [outputs[index] for index, _ in contents]
        if isinstance(self.runner, EvaluationRunner):
            # There are no updates by which the controller could hear of it.
            self.on_progress(part[0] + 1)

    def _backward(self, part: Part) -> None:
        program = self.runner.program
        gradients: dict[int, Tensor] = {}
        for target, contents in program.sends.items():
            floating = [index for index, spec in contents if spec.differentiable]
            if not floating:
                continue
            tensors = self.received.pop(Message("gradient", target, program.stage, *part))
            for index, tensor in zip(floating, tensors, strict=True):
                # An output that several stages read gets the sum of their gradients.
                gradients[index] = gradients[index] + tensor if index in gradients else tensor
        found = self._trained.backward(part, gradients, last=part in self._summed_next)
        for source, contents in program.receives.items():
            message = Message("gradient", program.stage, source, *part)
            keys = [StageOutput(source, index) for index, _ in contents]
            tensors = [found[key] for key in keys if key in found]
            if tensors:
                self._outgoing[message] = tensors


def _last_before_sums(actions: Sequence[Action]) -> frozenset[Part]:
    """Parts whose backward is the last before gradients are summed over the replicas."""
    found: set[Part] = set()
    last: Part | None = None
    for action in actions:
        match action:
            case Backward(minibatch, microbatch):
                last = (minibatch, microbatch)
            case AllReduce(_, _, "gradients") if last is not None:
                found.add(last)
            case Update():
                last = None
    return frozenset(found)
