"""Weights that several stages hold copies of, and how a schedule keeps the copies the same.

All copies make the same updates, each of the sum over the stages of the gradients of the same
minibatches. One stage of a tie, its *root*, is where the last of these gradients arrives: that with
the most parts between a forward and its backward. The others send it what they contribute as soon
as they have it, and it sends the sum back. Nobody waits for all: the messages travel while stages
compute. On four stages, of which the first and the last hold a copy (C: contribution, S: sum,
T: tied update)::

    stage 0   F0 F1 F2 F3 .. .. .. .. .. .. B0··· rC0 sS0 T1 U1 F4 B1··· rC1 sS1 T2 U2 F5
    stage 3            F0 B0··· sC0 U1 F1 B1··· sC1 U2 F2 ... F3 B3··· sC3 U4 rS0 T1 F4 B4···

The copies that a part meets in its forwards have had the same updates everywhere: a stage makes a
tied update just before its first forward of a part that met it at the root. So a copy is as late
as that of the root, though no update of the stage's own weights may come between its passes.

Where a schedule flushes, all copies are updated together with the stage's own weights, and the norm
of all gradients has the sum in it, once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import (
    Action,
    AllReduce,
    Forward,
    Message,
    MicrobatchId,
    Payload,
    Receive,
    Send,
    TiedUpdate,
    Update,
)
from drlpp.schedule.pipeline import Pipeline, senders_to_all


@dataclass(frozen=True)
class Tie:
    """Copies of the same weights on several stages.

    Attributes:
        number: which of the pipeline's ``ties``.
        stages: that hold a copy, in order.
        root: the stage that sums.
        together: minibatches whose gradients make one update.
    """

    number: int
    stages: tuple[int, ...]
    root: int
    together: int

    @property
    def others(self) -> tuple[int, ...]:
        """The stages besides the root."""
        return tuple(stage for stage in self.stages if stage != self.root)

    def updates(self, minibatches: int, microbatches: int, chunk: int = 0) -> list[TiedUpdate]:
        """Return the updates of a copy in a run."""
        found = []
        for version, first in enumerate(range(0, minibatches, self.together), start=1):
            through = min(first + self.together, minibatches)
            contributions = (through - first) * microbatches
            found.append(TiedUpdate(version, contributions, through, self.number, chunk))
        return found


def is_update(action: Action, tie: Tie | None) -> TypeGuard[Update | TiedUpdate]:
    """Return whether an action updates the weights of a tie, or those of one stage alone."""
    if tie is None:
        return isinstance(action, Update)
    return isinstance(action, TiedUpdate) and action.tie == tie.number


def ties_of(
    pipeline: Pipeline, in_flight: Sequence[int], together: Sequence[int]
) -> tuple[Tie, ...]:
    """Return the ties of a pipeline.

    Args:
        pipeline: the stages.
        in_flight: for every stage the parts that a replica has in flight.
        together: for every stage the minibatches of one of its updates.
    """
    apart = [
        (depth - 1) * len(workers)
        for depth, workers in zip(in_flight, pipeline.stages, strict=True)
    ]
    return tuple(
        Tie(
            number=number,
            stages=stages,
            root=max(stages, key=lambda stage: (apart[stage], -stage)),
            together=math.lcm(*(together[stage] for stage in stages)),
        )
        for number, stages in enumerate(pipeline.ties)
    )


def with_ties(
    actions: Mapping[int, Sequence[Action]],
    pipeline: Pipeline,
    ties: Sequence[Tie],
    minibatches: int,
    microbatches: int,
    *,
    flushes: bool,
) -> dict[int, tuple[Action, ...]]:
    """Add what keeps copies the same to the actions of all workers.

    Raises:
        InvalidInput: the order of passes would update copies at different times.
    """
    copies = {
        worker: [
            _Copy(tie, pipeline, worker, stage, tie.updates(minibatches, microbatches, chunk))
            for tie in ties
            for chunk, stage in enumerate(pipeline.stages_of(worker))
            if stage in tie.stages
        ]
        for worker in actions
    }
    found = {
        worker: tuple(_contributing(own, copies[worker], flushes=flushes))
        for worker, own in actions.items()
    }
    if flushes:
        return found
    for tie in ties:
        met = _met_at_root(found, pipeline.stages[tie.root], tie)
        for worker, held in copies.items():
            for copy in held:
                if copy.tie == tie and copy.stage != tie.root:
                    found[worker] = tuple(copy.following(found[worker], met))
    return found


def _contributing(
    actions: Iterable[Action], copies: Sequence[_Copy], *, flushes: bool
) -> Iterator[Action]:
    """Yield the actions of a worker, with what it contributes to the updates of its copies.

    That stands before the stage's update that completes it, and so do the norm of all gradients
    and the tied updates that are made with the stage's own.
    """
    norm: list[Action] = []
    for action in actions:
        if isinstance(action, AllReduce) and action.content == "squared_norm":
            norm = [action]
            continue
        if isinstance(action, Update):
            complete = [(copy, u) for copy in copies for u in copy.completed_by(action)]
            for copy, update in complete:
                yield from copy.contribution(update)
            for copy, update in complete:
                yield from copy.summing(update)
            yield from norm
            for copy, update in complete:
                if flushes or copy.stage == copy.tie.root:
                    yield from copy.updating(update)
            norm = []
        yield action


@dataclass(frozen=True)
class _Copy:
    """A copy on one worker."""

    tie: Tie
    pipeline: Pipeline
    worker: int
    stage: int
    updates: Sequence[TiedUpdate]

    def completed_by(self, own: Update) -> list[TiedUpdate]:
        """Return the tied update whose gradients a stage has all with its own update, if any."""
        return [update for update in self.updates if update.through == own.through]

    def contribution(self, update: TiedUpdate) -> Iterator[Action]:
        """Yield what a stage does with its own gradients of an update."""
        replicas = self.pipeline.stages[self.stage]
        if len(replicas) > 1:
            yield AllReduce(update.version, replicas, "tied_gradients", self.tie.number)
        if self.stage != self.tie.root:
            yield from self._passing("contribution", self.stage, self.tie.root, update)

    def summing(self, update: TiedUpdate) -> Iterator[Action]:
        """Yield what the root does with the others' gradients."""
        if self.stage == self.tie.root:
            for stage in self.tie.others:
                yield from self._passing("contribution", stage, self.stage, update)
            for stage in self.tie.others:
                yield from self._passing("sum", self.stage, stage, update)

    def updating(self, update: TiedUpdate) -> Iterator[Action]:
        """Yield the update, with the sum that it waits for."""
        if self.stage != self.tie.root:
            yield from self._passing("sum", self.tie.root, self.stage, update)
        yield update

    def _passing(
        self, payload: Payload, source: int, target: int, update: TiedUpdate
    ) -> Iterator[Action]:
        """Yield what the worker sends, or receives, where each replica of the target is served."""
        stages = self.pipeline.stages
        message = Message(payload, source, target, update.through - 1, self.tie.number)
        for sender, receiver in senders_to_all(stages[source], stages[target]):
            if self.stage == source and sender == self.worker:
                yield Send(message, receiver)
            elif self.stage == target and receiver == self.worker:
                yield Receive(message, sender)

    def following(
        self, actions: Iterable[Action], met: Mapping[MicrobatchId, int]
    ) -> Iterator[Action]:
        """Yield the actions, with every tied update before the first forward that ``met`` it.

        Raises:
            InvalidInput: the stage has not contributed to an update by then.
        """
        version = contributed = 0
        arriving: list[Action] = []
        for action in actions:
            if isinstance(action, Receive) and action.message.payload == "activation":
                arriving.append(action)
                continue
            if isinstance(action, Forward):
                wanted = met[action.part]
                if not version <= wanted <= contributed:
                    raise InvalidInput(
                        f"stages {self.tie.root} and {self.stage} share a parameter, and minibatch "
                        f"{action.minibatch} would meet its version {wanted} on the one and "
                        f"{min(max(version, wanted), contributed)} on the other: on this schedule "
                        "put the operators that share it into one stage"
                    )
                for update in self.updates[version:wanted]:
                    yield from self.updating(update)
                version = wanted
            yield from arriving
            arriving = []
            yield action
            if isinstance(action, Update):
                contributed += len(self.completed_by(action))
        for update in self.updates[version:]:
            yield from self.updating(update)


def _met_at_root(
    actions: Mapping[int, Sequence[Action]], replicas: Iterable[int], tie: Tie
) -> dict[MicrobatchId, int]:
    """Return the version of the tied weights that every part meets in its forward at the root."""
    met: dict[MicrobatchId, int] = {}
    for worker in replicas:
        version = 0
        for action in actions[worker]:
            if isinstance(action, Forward):
                met[action.part] = version
            elif isinstance(action, TiedUpdate) and action.tie == tie.number:
                version = action.version
    return met
