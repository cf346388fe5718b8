"""A schedule compiled for the simulator: for every worker a list of steps, as arrays of integers.

Receives become the routes whose next message a step waits for, sends those on which one leaves when
the step ends. Messages of a route are received in the order in which they are sent, and the sums of
a kind are made in theirs, so neither needs a number: a step is the same in every round.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy

from drlpp.costs.stage_cost import Indices
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
    Receive,
    Send,
    TiedUpdate,
    Update,
)
from drlpp.schedule.schedule import Schedule


def begins_of(counts: Sequence[int] | Indices) -> Indices:
    """Return where each of some lists begins that stand one after the other, then the end."""
    return numpy.concatenate([[0], numpy.cumsum(counts)]).astype(int)


def numbered(counts: Indices) -> tuple[Indices, Indices]:
    """Return for each of what so many lists hold its list, and its number in that."""
    lists = numpy.repeat(numpy.arange(len(counts)), counts)
    return lists, numpy.arange(len(lists)) - begins_of(counts)[lists]


KINDS: dict[type, int] = {action: kind for kind, action in enumerate(COMPUTATIONS)}
_BACKWARD = KINDS[Backward]
# The last backward before the gradients of a stage are summed: its buckets leave meanwhile.
SUMMED_BACKWARD = len(KINDS)
_OF_SECOND_STAGE = SUMMED_BACKWARD + 1
# Takes no time; what is sent then leaves when the messages before it have arrived.
ARRIVED = _OF_SECOND_STAGE + len(KINDS)
# Updates of a stage's copy of the weights of each tie, then those of a second stage's.
TIED_UPDATE = ARRIVED + 1
FINISH_SUM = -1
"""Kinds below 0 wait for an all-reduce; the others take compute time."""
# Of a replica that has no minibatch in this round, or splits its backwards: it joins in when it
# gets there.
JOIN_SUM = -2
# Of all workers, or of replicas and their copies of tied weights: nobody computes meanwhile.
AWAIT_SUM = -3

HELD: dict[type, tuple[int, int]] = {
    Forward: (1, 0),
    Backward: (-1, 0),
    BackwardInput: (0, 1),
    BackwardWeight: (-1, -1),
}
"""How passes change the microbatches in flight, and those between the halves of a backward."""


@dataclass(frozen=True, eq=False)
class Routes:
    """What kind of message goes from which worker to which, by their index, a value for each route.

    ``ties`` are those of tied weights, whose gradients are sent; −1 for all else.
    """

    source_stages: Indices
    target_stages: Indices
    senders: Indices
    receivers: Indices
    ties: Indices

    def __len__(self) -> int:
        return len(self.ties)


class Sum(NamedTuple):
    """An all-reduce: of the gradients of a stage, −1 for the squared norm, among ``members``.

    ``tie`` is that of tied weights, whose gradients are summed by themselves; −1 for all others.
    """

    stage: int
    members: int
    tie: int = -1


@dataclass(frozen=True, eq=False)
class Steps:
    """What workers do, the steps of one behind those of another.

    Attributes:
        counts: how many steps every worker has.
        kinds: of the steps.
        sums: the kind of all-reduce of every step, or −1.
        waiting, sending: on how many routes a step waits, and how many it sends on.
        waits, sends: these routes, step by step.
    """

    counts: Indices
    kinds: Indices
    sums: Indices
    waiting: Indices
    sending: Indices
    waits: Indices
    sends: Indices

    @property
    def workers(self) -> Indices:
        """The worker of every step."""
        return numbered(self.counts)[0]

    def between(self, begins: Indices, ends: Indices) -> Steps:
        """Return the steps of every worker from one number to another."""
        worker, number = numbered(self.counts)
        chosen = (begins[worker] <= number) & (number < ends[worker])
        return Steps(
            counts=ends - begins,
            kinds=self.kinds[chosen],
            sums=self.sums[chosen],
            waiting=self.waiting[chosen],
            sending=self.sending[chosen],
            waits=self.waits[numpy.repeat(chosen, self.waiting)],
            sends=self.sends[numpy.repeat(chosen, self.sending)],
        )

    def same(self, other: Steps) -> bool:
        """Whether all workers do the same."""
        return all(
            numpy.array_equal(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)
        )


@dataclass(frozen=True, slots=True)
class Program:
    """A schedule as the simulator plays it. Workers have indices, stage by stage.

    Attributes:
        stages_of: the stages of every worker, one or two.
        steps: of every worker.
        routes: that messages take.
        sums: the kinds of all-reduces.
        in_flight: for every stage of every worker, one after the other, the most microbatches whose
            backward, or a half of it, is still to come.
        half_done: likewise the most microbatches between the halves of their backwards.
        updates: for every worker the step of each update and the minibatches it completes.
    """

    stages_of: tuple[tuple[int, ...], ...]
    steps: Steps
    routes: Routes
    sums: tuple[Sum, ...]
    in_flight: tuple[int, ...]
    half_done: tuple[int, ...]
    updates: tuple[tuple[tuple[int, int], ...], ...]

    @classmethod
    def of(cls, schedule: Schedule) -> Program:
        """Compile a schedule."""
        return _Compiler(schedule).compile()

    def until(self, minibatches: int) -> list[int]:
        """Return the step of every worker that completes the first so many minibatches."""
        return [
            updates[bisect_left(updates, minibatches, key=itemgetter(1))][0]
            for updates in self.updates
        ]


class _Compiler:
    """A walk through the actions of all workers, one after the other."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.index = {worker: k for k, worker in enumerate(schedule.pipeline.stages_by_worker)}
        self.routes: dict[tuple[int, ...], int] = {}
        self.sums: dict[Sum, int] = {}
        # Of every step.
        self.kinds: list[int] = []
        self.summed: list[int] = []
        self.waits: list[tuple[int, ...]] = []
        self.sends: list[tuple[int, ...]] = []

    def compile(self) -> Program:
        stages_of = self.schedule.pipeline.stages_by_worker
        counts, most, updates = [], [], []
        for worker, stages in stages_of.items():
            before = len(self.kinds)
            held, made = self.walk(worker, stages)
            counts.append(len(self.kinds) - before)
            most += held
            updates.append(tuple((step - before, through) for step, through in made))
        in_flight, half_done = zip(*most, strict=True)

        def numbers(values: Iterable[int]) -> Indices:
            return numpy.fromiter(values, dtype=int)

        return Program(
            stages_of=tuple(stages_of.values()),
            steps=Steps(
                counts=numbers(counts),
                kinds=numbers(self.kinds),
                sums=numbers(self.summed),
                waiting=numbers(map(len, self.waits)),
                sending=numbers(map(len, self.sends)),
                waits=numbers(chain(*self.waits)),
                sends=numbers(chain(*self.sends)),
            ),
            routes=Routes(*numpy.array(list(self.routes), dtype=int).reshape(-1, 5).T),
            sums=tuple(self.sums),
            in_flight=in_flight,
            half_done=half_done,
            updates=tuple(updates),
        )

    def walk(
        self, worker: int, stages: tuple[int, ...]
    ) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """Add the steps of a worker; return the most that each stage holds, and the updates."""
        here, index, kinds = self.index[worker], self.index, self.kinds
        received: tuple[int, ...] = ()
        updates = []
        last_backward = -1
        held, most = ([[0, 0] for _ in stages] for _ in range(2))

        def step(kind: int, sum_: int = -1) -> None:
            nonlocal received
            kinds.append(kind)
            self.summed.append(sum_)
            self.waits.append(received)
            self.sends.append(())
            received = ()

        for action in self.schedule.actions[worker]:
            match action:
                case Receive():
                    received += (self.route(action.message, index[action.sender], here),)
                case Send():
                    if received:
                        step(ARRIVED)
                    self.sends[-1] += (self.route(action.message, here, index[action.to]),)
                case TiedUpdate():
                    step(TIED_UPDATE + action.tie + action.chunk * len(self.schedule.pipeline.ties))
                case AllReduce():
                    kind, sum_ = self.sum(action, stages[0], last_backward)
                    if kind == FINISH_SUM:
                        kinds[last_backward], self.summed[last_backward] = SUMMED_BACKWARD, sum_
                    step(kind, sum_)
                case Pass():
                    for number, change in enumerate(HELD.get(type(action), ())):
                        held[action.chunk][number] += change
                        now = held[action.chunk][number]
                        most[action.chunk][number] = max(most[action.chunk][number], now)
                    kind = KINDS[type(action)]
                    if action.chunk == 0 and kind == _BACKWARD:
                        last_backward = len(kinds)
                    step(kind + _OF_SECOND_STAGE * (action.chunk > 0))
                case Update():
                    updates.append((len(kinds), action.through))
                    last_backward = -1
                    step(KINDS[Update])
        return most, updates

    def route(self, message: Message, sender: int, receiver: int) -> int:
        tie = message.microbatch if message.payload in TIED_PAYLOADS else -1
        route = message.source_stage, message.target_stage, sender, receiver, tie
        return self.routes.setdefault(route, len(self.routes))

    def sum(self, action: AllReduce, stage: int, last_backward: int) -> tuple[int, int]:
        """Return the kind of step, and of this all-reduce."""
        tie = -1
        if action.content == "squared_norm":
            stage = -1
        elif action.content == "tied_gradients":
            tie = action.tie
            stage = self.schedule.pipeline.stages.index(action.workers)
        number = self.sums.setdefault(Sum(stage, len(action.workers), tie), len(self.sums))
        if stage < 0 or tie >= 0:
            return AWAIT_SUM, number
        return (FINISH_SUM if last_backward >= 0 else JOIN_SUM), number
