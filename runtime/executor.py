"""Performing the actions of one worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from drlpp.runtime.communication import Mailbox
from drlpp.runtime.minibatches import Part
from drlpp.runtime.stage_runner import EvaluationRunner, StageRunner
from drlpp.runtime.stages import StageOutput
from drlpp.schedule import (
    Action,
    AllReduce,
    Backward,
    Forward,
    Message,
    Receive,
    Send,
    Update,
    WeightVersions,
)


@dataclass
class Executor:
    """Executes a schedule's actions on one worker.

    Attributes:
        runner: the worker's stage.
        mailbox: its messages.
        replicas: the group of all replicas of the stage, None without replication.
        versions: of every part that this worker processes.
        on_update: called with the version of the weights after every update.
    """

    runner: StageRunner | EvaluationRunner
    mailbox: Mailbox
    replicas: dist.ProcessGroup | None
    versions: Mapping[Part, WeightVersions]
    on_update: Callable[[int], None]
    _received: dict[Message, list[Tensor]] = field(default_factory=dict)
    _outgoing: dict[Message, list[Tensor]] = field(default_factory=dict)

    def run(self, actions: tuple[Action, ...]) -> list[tuple[float, float]]:
        """Perform all actions.

        Returns:
            Begin and end of every action, in seconds of ``time.perf_counter``, which all
            processes of a machine share.
        """
        times = []
        for action in actions:
            begin = time.perf_counter()
            self.perform(action)
            times.append((begin, time.perf_counter()))
        self.mailbox.drain()
        return times

    @property
    def _trained(self) -> StageRunner:
        assert isinstance(self.runner, StageRunner)
        return self.runner

    def perform(self, action: Action) -> None:
        """Perform one action."""
        match action:
            case Receive(message, _):
                self._received[message] = self.mailbox.receive(action)
            case Forward(minibatch, microbatch):
                self._forward((minibatch, microbatch))
            case Send(message, _):
                self.mailbox.send(action, self._outgoing.pop(message))
            case Backward(minibatch, microbatch):
                self._backward((minibatch, microbatch))
            case AllReduce():
                assert self.replicas is not None
                for flat in self._trained.gradients():
                    self.replicas.allreduce([flat]).wait()
            case Update(version, contributions):
                self._trained.update(contributions)
                self.on_update(version)

    def _forward(self, part: Part) -> None:
        program = self.runner.program
        received: dict[StageOutput, Tensor] = {}
        for source, contents in program.receives.items():
            tensors = self._received.pop(Message("activation", source, program.stage, *part))
            for (index, _), tensor in zip(contents, tensors, strict=True):
                received[StageOutput(source, index)] = tensor
        versions = self.versions.get(part)
        outputs = self.runner.forward(part, received, versions.difference if versions else 0)
        for target, contents in program.sends.items():
            message = Message("activation", program.stage, target, *part)
            self._outgoing[message] = [outputs[index] for index, _ in contents]

    def _backward(self, part: Part) -> None:
        program = self.runner.program
        gradients: dict[int, Tensor] = {}
        for target, contents in program.sends.items():
            floating = [index for index, spec in contents if spec.differentiable]
            if not floating:
                continue
            tensors = self._received.pop(Message("gradient", target, program.stage, *part))
            for index, tensor in zip(floating, tensors, strict=True):
                # An output that several stages read gets the sum of their gradients.
                gradients[index] = gradients[index] + tensor if index in gradients else tensor
        found = self._trained.backward(part, gradients)
        for source, contents in program.receives.items():
            message = Message("gradient", program.stage, source, *part)
            keys = [StageOutput(source, index) for index, _ in contents]
            tensors = [found[key] for key in keys if key in found]
            if tensors:
                self._outgoing[message] = tensors
