"""A schedule is data: for every worker the list of actions that it performs, in order.

The runtime executes these lists, the simulator times them, the reference executor replays them
in one process, the timeline draws them, and the version difference s of weight prediction is
counted in them. Nothing else in the project knows what "1F1B" means.

Asynchronous 1F1B (pipedream §3.2) on four stages, minibatches 0, 1, 2, …; a backward takes as
long as two forwards, and every backward is followed by an update of its stage::

    stage 0   F0 F1 F2 F3 .. .. .. .. .. .. B0··· F4 B1··· F5 B2···
    stage 1      F0 F1 F2 .. .. .. .. B0··· F3 B1··· F4 B2··· F5
    stage 2         F0 F1 .. .. B0··· F2 B1··· F3 B2··· F4 B3···
    stage 3            F0 B0··· F1 B1··· F2 B2··· F3 B3··· F4
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from drlpp.errors import InvalidInput
from drlpp.pipeline import Pipeline

ScheduleKind = Literal["1f1b", "gpipe", "forward"]
Payload = Literal["activation", "gradient"]


@dataclass(frozen=True, slots=True)
class Forward:
    """Forward pass of the worker's stage for one microbatch."""

    minibatch: int
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Backward:
    """Backward pass of the worker's stage; adds to the gradients of the update in the making."""

    minibatch: int
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """What one stage sends to another for one microbatch: activations, or their gradients."""

    payload: Payload
    source_stage: int
    target_stage: int
    minibatch: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Send:
    """Start sending ``message`` to worker ``to``; never waits for it to arrive."""

    message: Message
    to: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for ``message`` from worker ``sender``."""

    message: Message
    sender: int


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum the gradients of update ``version`` over the replicas ``workers`` of the stage."""

    version: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """Make weights number ``version`` from the gradients of ``contributions`` microbatches.

    The weights that training starts with are number 0. The gradient is the mean over the
    contributions of all replicas, so it is what one large minibatch would give.
    """

    version: int
    contributions: int


Action = Forward | Backward | Send | Receive | AllReduce | Update


@dataclass(frozen=True)
class Schedule:
    """The actions of every worker for ``minibatches`` minibatches, the pipeline empty at both ends.

    Attributes:
        kind: ``1f1b`` (asynchronous, no flush), ``gpipe`` (one flush and one update a minibatch)
            or ``forward`` (evaluation).
        pipeline: the stages, their workers, and the edges between them.
        minibatches: how many minibatches run, numbered from 0.
        microbatches: parts of a minibatch (1 unless ``gpipe``).
        actions: for every worker its actions in order.
    """

    kind: ScheduleKind
    pipeline: Pipeline
    minibatches: int
    microbatches: int
    actions: dict[int, tuple[Action, ...]]


def build_schedule(
    pipeline: Pipeline, minibatches: int, kind: ScheduleKind = "1f1b", microbatches: int = 1
) -> Schedule:
    """Turn the shape of a placement into the list of actions of every worker.

    * ``1f1b``: asynchronous 1F1B; with replicated stages 1F1B-RR (pipedream §3.2), where
      minibatch b goes to replica b mod m of a stage with m replicas, and the m replicas
      all-reduce the gradients of m consecutive minibatches for one update. On a single
      replicated stage this is plain data parallelism.
    * ``gpipe``: all forwards of a minibatch's microbatches, then all backwards, then one update
      (GPipe, in pipedream §2.2); with one microbatch, naive model parallelism.
    * ``forward``: forward passes only.

    Raises:
        InvalidInput: for numbers below 1, or microbatches where the kind has none.
    """
    if minibatches < 1 or microbatches < 1:
        raise InvalidInput(
            f"minibatches is {minibatches} and microbatches {microbatches}; both must be at least 1"
        )
    if microbatches > 1 and kind != "gpipe":
        raise InvalidInput(f"a {kind} schedule has no microbatches; use kind 'gpipe' for them")
    actions = {}
    for stage, workers in enumerate(pipeline.stages):
        for replica, worker in enumerate(workers):
            writer = _Writer(pipeline, stage, replica, minibatches, microbatches)
            write = {
                "1f1b": writer.one_forward_one_backward,
                "gpipe": writer.gpipe,
                "forward": writer.forward_only,
            }[kind]
            actions[worker] = tuple(write())
    return Schedule(kind, pipeline, minibatches, microbatches, actions)


@dataclass(frozen=True)
class _Writer:
    """Writes the actions of one replica of one stage."""

    pipeline: Pipeline
    stage: int
    replica: int
    minibatches: int
    microbatches: int

    @property
    def replicas(self) -> tuple[int, ...]:
        return self.pipeline.stages[self.stage]

    def one_forward_one_backward(self) -> Iterator[Action]:
        mine = list(range(self.replica, self.minibatches, len(self.replicas)))
        warm_up = self.pipeline.in_flight[self.stage] - 1
        for minibatch in mine[:warm_up]:
            yield from self.forward(minibatch)
        rounds = -(-self.minibatches // len(self.replicas))
        for turn in range(rounds):
            if turn + warm_up < len(mine):
                yield from self.forward(mine[turn + warm_up])
            if turn < len(mine):
                yield from self.backward(mine[turn])
            # In the last round a replica may have no minibatch; it still joins in the update.
            contributions = min(len(self.replicas), self.minibatches - turn * len(self.replicas))
            yield from self.update(turn + 1, contributions)

    def gpipe(self) -> Iterator[Action]:
        for minibatch in range(self.minibatches):
            mine = [
                microbatch
                for microbatch in range(self.microbatches)
                if self.taken_by(self.stage, minibatch, microbatch) == self.replicas[self.replica]
            ]
            for microbatch in mine:
                yield from self.forward(minibatch, microbatch)
            for microbatch in mine:
                yield from self.backward(minibatch, microbatch)
            yield from self.update(minibatch + 1, self.microbatches)

    def forward_only(self) -> Iterator[Action]:
        for minibatch in range(self.replica, self.minibatches, len(self.replicas)):
            yield from self.forward(minibatch)

    def taken_by(self, stage: int, minibatch: int, microbatch: int) -> int:
        """The replica that takes this part, by round-robin, so that nobody has to coordinate."""
        replicas = self.pipeline.stages[stage]
        return replicas[(minibatch * self.microbatches + microbatch) % len(replicas)]

    def forward(self, minibatch: int, microbatch: int = 0) -> Iterator[Action]:
        for edge in self.pipeline.incoming(self.stage):
            message = Message("activation", edge.source, self.stage, minibatch, microbatch)
            yield Receive(message, self.taken_by(edge.source, minibatch, microbatch))
        yield Forward(minibatch, microbatch)
        for edge in self.pipeline.outgoing(self.stage):
            message = Message("activation", self.stage, edge.target, minibatch, microbatch)
            yield Send(message, self.taken_by(edge.target, minibatch, microbatch))

    def backward(self, minibatch: int, microbatch: int = 0) -> Iterator[Action]:
        for edge in self.pipeline.outgoing(self.stage):
            if edge.differentiable:
                message = Message("gradient", edge.target, self.stage, minibatch, microbatch)
                yield Receive(message, self.taken_by(edge.target, minibatch, microbatch))
        yield Backward(minibatch, microbatch)
        for edge in self.pipeline.incoming(self.stage):
            if edge.differentiable:
                message = Message("gradient", self.stage, edge.source, minibatch, microbatch)
                yield Send(message, self.taken_by(edge.source, minibatch, microbatch))

    def update(self, version: int, contributions: int) -> Iterator[Action]:
        if len(self.replicas) > 1:
            yield AllReduce(version, self.replicas)
        yield Update(version, contributions)


@dataclass(frozen=True, slots=True)
class WeightVersions:
    """The versions of a stage's weights that are the newest when a microbatch passes.

    ``forward`` at its forward, ``backward`` at its backward on the same worker; their difference
    is s, which pipeoptim eq. 4 gives as D − rank − 1 for the steady state of a straight pipeline.
    """

    forward: int
    backward: int

    @property
    def difference(self) -> int:
        """s: updates between this forward and its backward."""
        return self.backward - self.forward


def weight_versions(schedule: Schedule, worker: int) -> dict[tuple[int, int], WeightVersions]:
    """Count, in the actions of ``worker``, the weight versions of every microbatch it processes.

    Returns:
        ``{(minibatch, microbatch): versions}``.
    """
    forward: dict[tuple[int, int], int] = {}
    found: dict[tuple[int, int], WeightVersions] = {}
    version = 0
    for action in schedule.actions[worker]:
        match action:
            case Forward(minibatch, microbatch):
                forward[minibatch, microbatch] = version
            case Backward(minibatch, microbatch):
                key = (minibatch, microbatch)
                found[key] = WeightVersions(forward[key], version)
            case Update(new_version, _):
                version = new_version
    return found


def in_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """All actions of all workers in one order in which a single process can perform them.

    A receive comes after its send, and an all-reduce when all its workers have reached it (it is
    yielded once for each of them, in a row).

    Raises:
        RuntimeError: if the workers would wait for each other for ever.
    """
    position = dict.fromkeys(schedule.actions, 0)
    sent: set[tuple[Message, int]] = set()
    arrived: dict[AllReduce, set[int]] = defaultdict(set)
    ready = sorted(schedule.actions)
    while ready:
        worker = ready.pop(0)
        actions = schedule.actions[worker]
        while position[worker] < len(actions):
            action = actions[position[worker]]
            if isinstance(action, Receive) and (action.message, worker) not in sent:
                break
            if isinstance(action, AllReduce):
                arrived[action].add(worker)
                if len(arrived[action]) < len(action.workers):
                    break
                for member in action.workers:
                    position[member] += 1
                    yield member, action
                ready.extend(member for member in action.workers if member != worker)
                continue
            position[worker] += 1
            yield worker, action
            if isinstance(action, Send):
                sent.add((action.message, action.to))
                if action.to not in ready:
                    ready.append(action.to)
    stuck = {w: a[position[w]] for w, a in schedule.actions.items() if position[w] < len(a)}
    if stuck:
        raise RuntimeError(f"the schedule cannot proceed; workers wait for: {stuck}")
