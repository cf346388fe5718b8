"""A training on workers, held against the reference executor, plain PyTorch, or a rule by hand.

Workers and reference share the schedule, its counts, and optimizers; the others share nothing.
"""

import pickle
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.capturing.graph import OpGraph
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.runtime import Minibatches, RunOptions, run_reference
from drlpp.runtime.deploying.deployment import deployment_commands, merge_stages, run_commands
from drlpp.runtime.device.clocks import Clock
from drlpp.runtime.ipc.protocol import Deploy, GroupSpec, Run, Transport
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.worker.executor import Executor
from drlpp.schedule.actions import Message, Receive, Send
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import largest_difference
from tests.support.training.pipelines import draw, train
from tests.support.training.plain_steps import Weights

_STUCK_SECONDS = 30.0


@dataclass
class _Room:
    """What the workers of one run share."""

    turn: threading.Condition = field(default_factory=threading.Condition)
    messages: dict[tuple[Message, int], list[Tensor]] = field(default_factory=dict)
    sums: defaultdict[tuple[Any, int], dict[int, Tensor]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    failures: list[BaseException] = field(default_factory=list)

    def until(self, ready: Callable[[], bool]) -> None:
        """Give the turn to others until something is there."""
        if not self.turn.wait_for(lambda: self.failures or ready(), _STUCK_SECONDS):
            raise RuntimeError("workers wait for each other")
        if self.failures:
            raise RuntimeError("another worker failed")


@dataclass
class _Mailbox:
    """Hands tensors to the worker that they are for."""

    room: _Room
    worker: int

    def receive(self, action: Receive) -> list[Tensor]:
        key = action.message, self.worker
        self.room.until(lambda: key in self.room.messages)
        return self.room.messages.pop(key)

    def send(self, action: Send, tensors: Sequence[Tensor]) -> None:
        self.room.messages[action.message, action.to] = [t.detach().clone() for t in tensors]
        self.room.turn.notify_all()

    def drain(self) -> None:
        """Nothing is on its way."""


@dataclass
class _Group:
    """Sums tensors over its members, in the order in which each of them begins its sums."""

    room: _Room
    name: str
    members: Sequence[int]
    worker: int
    begun: int = 0

    def allreduce(self, tensors: Sequence[Tensor]) -> "_Sum":
        (tensor,) = tensors
        given = self.room.sums[self.name, self.begun]
        self.begun += 1
        given[self.worker] = tensor.clone()
        self.room.turn.notify_all()
        return _Sum(self, given, tensor)


@dataclass
class _Sum:
    group: _Group
    given: Mapping[int, Tensor]
    tensor: Tensor

    def wait(self) -> None:
        self.group.room.until(lambda: len(self.given) == len(self.group.members))
        self.tensor.copy_(torch.stack([self.given[w] for w in self.group.members]).sum(0))


def train_in_one_process(
    captured: CapturedModel,
    candidate: Candidate,
    optimizer: OptimizerSpec,
    minibatches: int,
    samples: Minibatches,
    options: RunOptions,
) -> dict[str, Tensor]:
    """Return all parameters and buffers after a run, as workers would have them.

    A test can change the code that runs, which it cannot in workers of their own. Every worker has
    a thread, and one of them works at a time: until it waits for a message or a sum.
    """
    method = candidate.method
    accelerators = 1 + max(candidate.placement.accelerators)
    plan = ExecutionPlan.of(candidate, captured.graph, accelerators)
    deploying = deployment_commands(
        captured.microbatch(method.microbatches),
        plan,
        optimizer,
        GroupSpec("run", plan.pipeline.workers, Transport()),
        seed=0,
        checkpoint=None,
    )
    running = run_commands(plan, minibatches, optimizer.rate, options)
    room = _Room()
    held = {
        worker: _runners(captured, command, running[worker], samples, room, worker)
        for worker, command in deploying.items()
    }
    threads = [
        threading.Thread(target=_perform, args=(room, worker, held[worker], running[worker], plan))
        for worker in held
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if room.failures:
        raise room.failures[0]
    collected = [runner.saved() for w in sorted(held, reverse=True) for runner in held[w]]
    stages = [{"model": values, "optimizer": known} for values, known in collected]
    return merge_stages(stages, captured.state, captured.state, captured.aliases)[0]


def _runners(
    captured: CapturedModel,
    command: Deploy,
    run: Run,
    samples: Minibatches,
    room: _Room,
    worker: int,
) -> list[StageRunner]:
    replicas = _Group(
        room, f"replicas of {command.group.replicas[0]}", command.group.replicas, worker
    )
    read = Minibatches(samples.samples, samples.labels, run.order, run.microbatches)
    return [
        StageRunner(
            program=program,
            state=captured.state | captured.constants,
            method=command.method,
            optimizer=command.optimizer,
            delays=delays,
            minibatches=read,
            sum_over_replicas=(lambda tensor: replicas.allreduce([tensor]))  # type: ignore
            if len(command.group.replicas) > 1
            else None,
            seed=command.seed,
            first_minibatch=run.first_minibatch,
        )
        for program, delays in zip(pickle.loads(command.stages), command.delays, strict=True)
    ]


def _perform(
    room: _Room, worker: int, runners: list[StageRunner], run: Run, plan: ExecutionPlan
) -> None:
    with room.turn:
        try:
            for runner, of_stage in zip(runners, run.plans, strict=False):
                runner.begin(of_stage)
            Executor(
                runners=runners,
                mailbox=_Mailbox(room, worker),  # type: ignore
                everyone=_Group(room, "everyone", plan.pipeline.workers, worker),  # type: ignore
                clock=Clock(),
                on_progress=lambda through: None,
                leads=worker == plan.pipeline.stages[plan.pipeline.stage_of(worker)][0],
            ).run(run.actions)
        except BaseException as error:
            room.failures.append(error)
            room.turn.notify_all()


RATE, MOMENTUM = 0.1, 0.9
SGD = OptimizerSpec.parse("sgd", lr=RATE, momentum=MOMENTUM)

Rule = Callable[[Sequence[tuple[Tensor, Tensor]]], Weights]
"""Trains on minibatches of inputs and targets."""


@dataclass(frozen=True)
class Subject:
    """A model to train, and on what.

    Attributes:
        reference: of the model; its loss is the cross entropy.
        placements: of its graph, by name.
        samples: inputs and targets.
        order: the samples of every minibatch.
    """

    reference: ModelReference
    placements: Callable[[OpGraph], dict[str, Placement]]
    samples: tuple[list[Tensor], Tensor]
    order: Tensor

    @property
    def minibatches(self) -> int:
        return len(self.order)

    @cached_property
    def captured(self) -> CapturedModel:
        return capture(self.reference)


@dataclass(frozen=True)
class Trained:
    """How workers train a model."""

    subject: Subject
    method: Method
    optimizer: OptimizerSpec = SGD
    placement: str = "straight"
    rates: Sequence[float] | None = None

    @property
    def placed(self) -> Placement:
        return self.subject.placements(self.subject.captured.graph)[self.placement]

    @property
    def _options(self) -> RunOptions:
        return RunOptions(order=self.subject.order, rates=self.rates)

    def on_workers(self) -> Weights:
        """Return the weights that workers end with."""
        return train_in_one_process(
            self.subject.captured,
            Candidate(self.placed, self.method),
            self.optimizer,
            self.subject.minibatches,
            Minibatches(*self.subject.samples),
            self._options,
        )

    def with_reference(self) -> float:
        """Compare with the reference executor."""
        reference = run_reference(
            self.subject.captured,
            self.placed,
            Minibatches(*self.subject.samples),
            self.subject.minibatches,
            method=self.method,
            optimizer=self.optimizer,
            options=self._options,
        )
        return largest_difference(self.on_workers(), reference.state)

    def with_pytorch(self) -> float:
        """Compare with the module and SGD in an ordinary loop over whole minibatches."""
        module = self.subject.reference.build().module
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
        minibatches = draw(self.subject.samples[0], self.subject.samples[1], self.subject.order)
        clip_norm = self.method.clip_norm
        train(module, F.cross_entropy, optimizer, minibatches, clip_norm=clip_norm)
        return largest_difference(self.on_workers(), module.state_dict())

    def with_rule(self, rule: Rule) -> float:
        """Compare with a loop that knows of no schedule."""
        (inputs,), targets = self.subject.samples
        wanted = rule([(inputs[indices], targets[indices]) for indices in self.subject.order])
        found = self.on_workers()
        return largest_difference({name: found[name] for name in wanted}, wanted)
