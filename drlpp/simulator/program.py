"""A schedule compiled for the simulator: for every worker a list of steps in small integers.

Receives become the messages that the next step waits for, sends those that leave when a step ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from drlpp.schedule.actions import (
    COMPUTATIONS,
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Message,
    Payload,
    Receive,
    Send,
    Update,
)
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.window import Window

_KINDS: dict[type, int] = {action: kind for kind, action in enumerate(COMPUTATIONS)}
FORWARD, BACKWARD = _KINDS[Forward], _KINDS[Backward]
_BACKWARD_INPUT, _BACKWARD_WEIGHT = _KINDS[BackwardInput], _KINDS[BackwardWeight]
# The last backward before the gradients of a stage are summed: its buckets leave meanwhile.
SUMMED_BACKWARD = len(_KINDS)
COMPUTING = SUMMED_BACKWARD + 1
"""Kinds below take compute time; the others wait for an all-reduce."""
FINISH_SUM = COMPUTING
# Of a replica that has no minibatch in this round, or splits its backwards: it joins in when it
# gets there.
JOIN_SUM = COMPUTING + 1
SQUARED_NORM = COMPUTING + 2

Step = tuple[tuple[int, ...], int, tuple[int, ...], int]
"""(messages to wait for, kind, messages to send at its end, all-reduce or −1)."""


class Route(NamedTuple):
    """What kind of message goes from which worker to which, by their index in the program."""

    payload: Payload
    source_stage: int
    target_stage: int
    sender: int
    receiver: int


@dataclass(frozen=True, slots=True)
class Program:
    """A schedule as the simulator plays it. Workers have indices, stage by stage.

    Attributes:
        workers: their numbers in the schedule.
        stage_of: the stage of every worker.
        steps: of every worker.
        routes: that messages take.
        route_of: the route of every message.
        all_reduces: for each the stage whose gradients it sums, or −1 for the squared norm, and
            how many workers join in.
        in_flight: for every worker the most microbatches whose backward, or a half of it, is still
            to come.
        half_done: for every worker the most microbatches between the halves of their backwards.
        updates: for every worker the step of each update and the minibatches it completes.
    """

    workers: tuple[int, ...]
    stage_of: tuple[int, ...]
    steps: tuple[tuple[Step, ...], ...]
    routes: tuple[Route, ...]
    route_of: tuple[int, ...]
    all_reduces: tuple[tuple[int, int], ...]
    in_flight: tuple[int, ...]
    half_done: tuple[int, ...]
    updates: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, schedule: Schedule) -> Program:
        """Compile a schedule."""
        return _Compiler(schedule).compile()

    def marks(self, window: Window) -> Iterator[list[int]]:
        """Yield the update of each worker for the beginning and end of every step of the window.

        When all of these updates have ended, the minibatches before are complete.
        """
        position = [0] * len(self.workers)
        last = window.warm_up + window.length
        for minibatch in range(window.warm_up - 1, last, window.step):
            steps = []
            for worker, updates in enumerate(self.updates):
                while updates[position[worker]][1] <= minibatch:
                    position[worker] += 1
                steps.append(updates[position[worker]][0])
            yield steps


class _Compiler:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.workers = tuple(w for stage in schedule.pipeline.stages for w in stage)
        self.index = {worker: index for index, worker in enumerate(self.workers)}
        self.messages: dict[Message, int] = {}
        self.routes: dict[Route, int] = {}
        self.route_of: list[int] = []
        # Workers that sum gradients are one stage's; the squared norm is of all.
        self.all_reduces: dict[tuple[int, int], int] = {}
        self.members: list[tuple[int, int]] = []
        self.in_flight: list[int] = []
        self.half_done: list[int] = []
        self.updates: list[tuple[tuple[int, int], ...]] = []

    def compile(self) -> Program:
        stages = self.schedule.pipeline.stages
        stage_of = [stage for stage, workers in enumerate(stages) for _ in workers]
        steps = tuple(
            tuple(self.steps_of(worker, stage))
            for worker, stage in zip(self.workers, stage_of, strict=True)
        )
        return Program(
            workers=self.workers,
            stage_of=tuple(stage_of),
            steps=steps,
            routes=tuple(self.routes),
            route_of=tuple(self.route_of),
            all_reduces=tuple(self.members),
            in_flight=tuple(self.in_flight),
            half_done=tuple(self.half_done),
            updates=tuple(self.updates),
        )

    def steps_of(self, worker: int, stage: int) -> Iterator[Step]:
        here, index = self.index[worker], self.index
        kinds: list[int] = []
        numbers: list[int] = []
        waits: list[tuple[int, ...]] = []
        sends: list[tuple[int, ...]] = []
        received: tuple[int, ...] = ()
        updates = []
        last_backward = -1
        in_flight = most = half_done = most_half_done = 0
        for action in self.schedule.actions[worker]:
            if isinstance(action, Receive):
                received += (self.message(action.message, index[action.sender], here),)
                continue
            if isinstance(action, Send):
                sends[-1] += (self.message(action.message, here, index[action.to]),)
                continue
            number = -1
            if isinstance(action, AllReduce):
                kind, number = self.all_reduce(action, stage, last_backward)
                if kind == FINISH_SUM:
                    kinds[last_backward], numbers[last_backward] = SUMMED_BACKWARD, number
            else:
                kind = _KINDS[type(action)]
            if kind == FORWARD:
                in_flight += 1
                most = max(most, in_flight)
            elif kind == BACKWARD:
                in_flight -= 1
                last_backward = len(kinds)
            elif kind == _BACKWARD_INPUT:
                half_done += 1
                most_half_done = max(most_half_done, half_done)
            elif kind == _BACKWARD_WEIGHT:
                half_done -= 1
                in_flight -= 1
            elif isinstance(action, Update):
                updates.append((len(kinds), action.through))
                last_backward = -1
            kinds.append(kind)
            numbers.append(number)
            waits.append(received)
            sends.append(())
            received = ()
        self.in_flight.append(most)
        self.half_done.append(most_half_done)
        self.updates.append(tuple(updates))
        return zip(waits, kinds, sends, numbers, strict=True)

    def message(self, message: Message, sender: int, receiver: int) -> int:
        number = self.messages.get(message)
        if number is None:
            number = self.messages[message] = len(self.route_of)
            route = Route(
                message.payload, message.source_stage, message.target_stage, sender, receiver
            )
            self.route_of.append(self.routes.setdefault(route, len(self.routes)))
        return number

    def all_reduce(self, action: AllReduce, stage: int, last_backward: int) -> tuple[int, int]:
        """Return the kind of step, and the number of this all-reduce."""
        summed = stage if action.content == "gradients" else -1
        number = self.all_reduces.setdefault((action.version, summed), len(self.members))
        if number == len(self.members):
            self.members.append((summed, len(action.workers)))
        if summed < 0:
            return SQUARED_NORM, number
        return (FINISH_SUM if last_backward >= 0 else JOIN_SUM), number
