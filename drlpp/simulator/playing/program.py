"""A schedule compiled for the simulator: for every worker a list of steps in small integers.

Receives become the messages that the next step waits for, sends those that leave when a step ends.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from drlpp.schedule.actions import (
    COMPUTATIONS,
    TIED_PAYLOADS,
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Message,
    Pass,
    Payload,
    Receive,
    Send,
    TiedUpdate,
    Update,
)
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.schedule import Schedule

_KINDS: dict[type, int] = {action: kind for kind, action in enumerate(COMPUTATIONS)}
BACKWARD = _KINDS[Backward]
# The last backward before the gradients of a stage are summed: its buckets leave meanwhile.
SUMMED_BACKWARD = len(_KINDS)
_OF_SECOND_STAGE = SUMMED_BACKWARD + 1
# Takes no time; what is sent then leaves when the messages before it have arrived.
ARRIVED = _OF_SECOND_STAGE + len(_KINDS)
# Updates of a stage's copy of the weights of each tie, then those of a second stage's.
TIED_UPDATE = ARRIVED + 1
FINISH_SUM = -1
"""Kinds below 0 wait for an all-reduce; the others take compute time."""
# Of a replica that has no minibatch in this round, or splits its backwards: it joins in when it
# gets there.
JOIN_SUM = -2
# Of all workers, or of replicas and their copies of tied weights: nobody computes meanwhile.
AWAIT_SUM = -3

ROUTE_BITS = 40
"""A message that is sent is named by its route above so many bits, and its number in them."""

Step = tuple[tuple[int, ...], int, tuple[int, ...], int]
"""(messages to wait for, kind, messages to send at its end with their routes, all-reduce or −1)."""


class Route(NamedTuple):
    """What kind of message goes from which worker to which, by their index in the program.

    ``tie`` is that of tied weights, whose gradients are sent; −1 for all else.
    """

    payload: Payload
    source_stage: int
    target_stage: int
    sender: int
    receiver: int
    tie: int = -1


class Sum(NamedTuple):
    """An all-reduce: of the gradients of a stage, −1 for the squared norm, among ``members``.

    ``tie`` is that of tied weights, whose gradients are summed by themselves; −1 for all others.
    """

    stage: int
    members: int
    tie: int = -1


@dataclass(frozen=True, slots=True)
class Program:
    """A schedule as the simulator plays it. Workers have indices, stage by stage.

    Attributes:
        workers: their numbers in the schedule.
        stages_of: the stages of every worker, one or two.
        steps: of every worker.
        routes: that messages take.
        route_of: the route of every message.
        all_reduces: what each sums.
        in_flight: for every stage of every worker, one after the other, the most microbatches whose
            backward, or a half of it, is still to come.
        half_done: likewise the most microbatches between the halves of their backwards.
        updates: for every worker the step of each update and the minibatches it completes.
    """

    workers: tuple[int, ...]
    stages_of: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[Step, ...], ...]
    routes: tuple[Route, ...]
    route_of: tuple[int, ...]
    all_reduces: tuple[Sum, ...]
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


@dataclass(frozen=True, slots=True)
class Rounds:
    """Steps that workers repeat for ever once they have done a program.

    Messages and all-reduces of the n-th repetition have numbers that are n rounds' larger.

    Attributes:
        steps: of every worker in a round.
        messages: of a round.
        other_messages: how many numbers of messages are needed besides those of the rounds.
        all_reduces: of a round, as those of a program.
    """

    steps: tuple[tuple[Step, ...], ...]
    messages: int
    other_messages: int
    all_reduces: tuple[Sum, ...]


@dataclass(slots=True)
class _Held:
    """The microbatches that a worker holds of one of its stages, and the most at any time."""

    in_flight: int = 0
    half_done: int = 0
    most_in_flight: int = 0
    most_half_done: int = 0

    def count(self, action: Pass) -> None:
        match action:
            case Forward():
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
            case BackwardInput():
                self.half_done += 1
                self.most_half_done = max(self.most_half_done, self.half_done)
            case BackwardWeight():
                self.half_done -= 1
                self.in_flight -= 1
            case Backward():
                self.in_flight -= 1


@contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Pause the search for reference cycles.

    Long schedules are a million objects without cycles, and the search takes a third longer.
    """
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()


class _Compiler:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.workers = tuple(schedule.pipeline.stages_by_worker)
        self.index = {worker: index for index, worker in enumerate(self.workers)}
        # Replicas may get the same one of tied weights.
        self.messages: dict[tuple[Message, int], int] = {}
        self.routes: dict[Route, int] = {}
        self.route_of: list[int] = []
        # Workers that sum gradients are one stage's; the squared norm is of all.
        self.all_reduces: dict[tuple[int, Sum], int] = {}
        self.sums: list[Sum] = []
        self.in_flight: list[int] = []
        self.half_done: list[int] = []
        self.updates: list[tuple[tuple[int, int], ...]] = []

    def compile(self) -> Program:
        stages_of = tuple(self.schedule.pipeline.stages_by_worker.values())
        steps = tuple(
            tuple(self.steps_of(worker, stages))
            for worker, stages in zip(self.workers, stages_of, strict=True)
        )
        return Program(
            workers=self.workers,
            stages_of=stages_of,
            steps=steps,
            routes=tuple(self.routes),
            route_of=tuple(self.route_of),
            all_reduces=tuple(self.sums),
            in_flight=tuple(self.in_flight),
            half_done=tuple(self.half_done),
            updates=tuple(self.updates),
        )

    def steps_of(self, worker: int, stages: tuple[int, ...]) -> Iterator[Step]:
        here, index = self.index[worker], self.index
        kinds: list[int] = []
        numbers: list[int] = []
        waits: list[tuple[int, ...]] = []
        sends: list[tuple[int, ...]] = []
        received: tuple[int, ...] = ()
        updates = []
        last_backward = -1
        held = [_Held() for _ in stages]
        for action in self.schedule.actions[worker]:
            if isinstance(action, Receive):
                received += (self.message(action.message, index[action.sender], here),)
                continue
            if isinstance(action, Send):
                if received:
                    kinds.append(ARRIVED)
                    numbers.append(-1)
                    waits.append(received)
                    sends.append(())
                    received = ()
                sent = self.message(action.message, here, index[action.to])
                sends[-1] += ((self.route_of[sent] << ROUTE_BITS) + sent,)
                continue
            number = -1
            if isinstance(action, TiedUpdate):
                kind = TIED_UPDATE + action.tie + action.chunk * len(self.schedule.pipeline.ties)
            elif isinstance(action, AllReduce):
                kind, number = self.all_reduce(action, stages[0], last_backward)
                if kind == FINISH_SUM:
                    kinds[last_backward], numbers[last_backward] = SUMMED_BACKWARD, number
            else:
                kind = _KINDS[type(action)]
            if isinstance(action, Pass):
                held[action.chunk].count(action)
                if action.chunk:
                    kind += _OF_SECOND_STAGE
                elif kind == BACKWARD:
                    last_backward = len(kinds)
            elif isinstance(action, Update):
                updates.append((len(kinds), action.through))
                last_backward = -1
            kinds.append(kind)
            numbers.append(number)
            waits.append(received)
            sends.append(())
            received = ()
        self.in_flight += [of_stage.most_in_flight for of_stage in held]
        self.half_done += [of_stage.most_half_done for of_stage in held]
        self.updates.append(tuple(updates))
        return zip(waits, kinds, sends, numbers, strict=True)

    def message(self, message: Message, sender: int, receiver: int) -> int:
        number = self.messages.get((message, receiver))
        if number is None:
            number = self.messages[message, receiver] = len(self.route_of)
            tie = message.microbatch if message.payload in TIED_PAYLOADS else -1
            route = Route(
                message.payload, message.source_stage, message.target_stage, sender, receiver, tie
            )
            self.route_of.append(self.routes.setdefault(route, len(self.routes)))
        return number

    def all_reduce(self, action: AllReduce, stage: int, last_backward: int) -> tuple[int, int]:
        """Return the kind of step, and the number of this all-reduce."""
        tie = -1
        if action.content == "squared_norm":
            stage = -1
        elif action.content == "tied_gradients":
            tie = action.tie
            stage = self.schedule.pipeline.stages.index(action.workers)
        summed = Sum(stage, len(action.workers), tie)
        number = self.all_reduces.setdefault((action.version, summed), len(self.sums))
        if number == len(self.sums):
            self.sums.append(summed)
        if stage < 0 or tie >= 0:
            return AWAIT_SUM, number
        return (FINISH_SUM if last_backward >= 0 else JOIN_SUM), number
