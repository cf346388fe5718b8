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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from drlpp.errors import InvalidInput
from drlpp.schedule.pipeline import Pipeline

ScheduleKind = Literal["1f1b", "1f1b-flush", "gpipe", "forward"]
Payload = Literal["activation", "gradient"]

Part = tuple[int, int]
"""What passes through a stage at once: (minibatch, microbatch)."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Forward pass of the worker's stage for one microbatch."""

    minibatch: int
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Recompute:
    """The forward pass of a microbatch once more, whose activations were not kept.

    It stands before the gradients of the microbatch are waited for, and no update comes between
    it and the backward pass.
    """

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
    """Sum something over ``workers`` for update ``version``.

    ``content`` is ``gradients``, of the replicas of a stage, or ``squared_norm``, of the gradients
    of all stages, for clipping and to skip updates that are not finite.
    """

    version: int
    workers: tuple[int, ...]
    content: Literal["gradients", "squared_norm"] = "gradients"


@dataclass(frozen=True, slots=True)
class Update:
    """Make weights number ``version`` from the gradients of ``contributions`` microbatches.

    The weights that a run starts with are number 0. The gradient is the mean over the
    contributions of all replicas, so it is what one large minibatch would give. Afterwards the
    weights contain the minibatches before number ``through``.
    """

    version: int
    contributions: int
    through: int


Action = Forward | Recompute | Backward | Send | Receive | AllReduce | Update


@dataclass(frozen=True)
class Schedule:
    """The actions of every worker for ``minibatches`` minibatches, the pipeline empty at both ends.

    Attributes:
        kind: ``1f1b`` (asynchronous, no flush), ``1f1b-flush`` and ``gpipe`` (a flush before every
            update) or ``forward`` (evaluation).
        pipeline: the stages, their workers, and the edges between them.
        minibatches: how many minibatches run, numbered from 0.
        microbatches: parts of a minibatch (1 unless the kind flushes).
        actions: for every worker its actions in order.
    """

    kind: ScheduleKind
    pipeline: Pipeline
    minibatches: int
    microbatches: int
    actions: dict[int, tuple[Action, ...]]


MOST_PASSES = 4_000_000
"""Of all stages in one run. Its list of actions takes about 1 kB for each, and 10 µs."""


def check_length(pipeline: Pipeline, minibatches: int, microbatches: int = 1) -> None:
    """See that a run is not too long to be written down.

    Raises:
        InvalidInput: saying what would make it shorter.
    """
    passes = minibatches * microbatches * len(pipeline.stages)
    if passes > MOST_PASSES:
        raise InvalidInput(
            f"a run of {minibatches} minibatches in {microbatches} parts through "
            f"{len(pipeline.stages)} stages is {passes} passes; up to {MOST_PASSES} are written "
            "down at once: take fewer minibatches for an epoch or a measurement (--minibatches), "
            "microbatches or accumulate"
        )


def build_schedule(
    pipeline: Pipeline,
    minibatches: int,
    kind: ScheduleKind = "1f1b",
    microbatches: int = 1,
    *,
    accumulate: int = 1,
    in_flight_per_link: int = 0,
    recompute: bool = False,
    share_norm: bool = False,
) -> Schedule:
    """Turn the shape of a placement into the list of actions of every worker.

    * ``1f1b``: asynchronous 1F1B; with replicated stages 1F1B-RR (pipedream §3.2), where
      minibatch b goes to replica b mod m of a stage with m replicas. A stage makes one update for
      the fewest whole multiples of ``accumulate`` minibatches that give each replica one; the
      replicas all-reduce their gradients for it. On a single replicated stage this is plain data
      parallelism.
    * ``1f1b-flush``: the microbatches of an update in 1F1B order, then one update (PipeDream-Flush,
      DAPPLE): as many in flight as asynchronously, where GPipe has all of them.
    * ``gpipe``: all forwards of an update's microbatches, then all backwards, then the update
      (GPipe, in pipedream §2.2); with one microbatch, naive model parallelism.
    * ``forward``: forward passes only.

    Args:
        pipeline: the stages and their workers.
        minibatches: how many run.
        kind: see above.
        microbatches: parts of a minibatch.
        accumulate: minibatches whose gradients make one update.
        in_flight_per_link: minibatches that a stage has in flight beyond NOAM, for the link into
            each worker behind it (:meth:`drlpp.schedule.pipeline.Pipeline.in_flight`); for ``1f1b``
            only.
        recompute: do not keep activations from the forward to the backward, but compute them
            again; where the backward follows at once there is nothing to gain, and they are kept.
        share_norm: share the norm of all stages' gradients before an update. Only where a schedule
            flushes: otherwise stages make their updates at different times.

    Raises:
        InvalidInput: for numbers that are too small or too large, or microbatches or minibatches
            in flight where the kind has none.
    """
    if min(minibatches, microbatches, accumulate) < 1:
        raise InvalidInput(
            f"minibatches is {minibatches}, microbatches {microbatches} and accumulate "
            f"{accumulate}; all must be at least 1"
        )
    if microbatches > 1 and kind in {"1f1b", "forward"}:
        raise InvalidInput(
            f"a {kind} schedule has no microbatches; use kind 'gpipe' or '1f1b-flush' for them"
        )
    if in_flight_per_link < 0:
        raise InvalidInput(f"in_flight_per_link is {in_flight_per_link}; 0 or more is expected")
    if in_flight_per_link and kind != "1f1b":
        raise InvalidInput(
            f"a {kind} schedule has no minibatches in flight beyond its own; use kind '1f1b' with "
            f"in_flight_per_link {in_flight_per_link}"
        )
    check_length(pipeline, minibatches, microbatches)
    in_flight = pipeline.in_flight(in_flight_per_link)
    actions = {}
    for stage, workers in enumerate(pipeline.stages):
        for replica, worker in enumerate(workers):
            writer = _Writer(
                pipeline=pipeline,
                stage=stage,
                replica=replica,
                most_in_flight=in_flight[stage],
                minibatches=minibatches,
                microbatches=microbatches,
                accumulate=accumulate,
                recompute=recompute,
                share_norm=share_norm,
            )
            write = {
                "1f1b": writer.one_forward_one_backward,
                "1f1b-flush": writer.flushed_one_forward_one_backward,
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
    most_in_flight: int
    minibatches: int
    microbatches: int
    accumulate: int
    recompute: bool
    share_norm: bool

    @property
    def replicas(self) -> tuple[int, ...]:
        return self.pipeline.stages[self.stage]

    def one_forward_one_backward(self) -> Iterator[Action]:
        rounds_together = -(-len(self.replicas) // self.accumulate)
        together = self.accumulate * rounds_together
        mine = [(b, 0) for b in range(self.replica, self.minibatches, len(self.replicas))]
        steps = self.alternate(mine, self.most_in_flight)
        done = 0
        for version, first in enumerate(range(0, self.minibatches, together), start=1):
            through = min(first + together, self.minibatches)
            # In the last round a replica may have no minibatch; it still joins in the update.
            while done < len(mine) and mine[done][0] < through:
                yield from next(steps)
                done += 1
            yield from self.update(version, through - first, through)

    def gpipe(self) -> Iterator[Action]:
        return self.flushed(most_in_flight=None)

    def flushed_one_forward_one_backward(self) -> Iterator[Action]:
        return self.flushed(self.most_in_flight)

    def flushed(self, most_in_flight: int | None) -> Iterator[Action]:
        for version, first in enumerate(range(0, self.minibatches, self.accumulate), start=1):
            through = min(first + self.accumulate, self.minibatches)
            mine = [
                (minibatch, microbatch)
                for minibatch in range(first, through)
                for microbatch in range(self.microbatches)
                if self.taken_by(self.stage, (minibatch, microbatch)) == self.replicas[self.replica]
            ]
            for step in self.alternate(mine, most_in_flight or len(mine)):
                yield from step
            contributions = (through - first) * self.microbatches
            yield from self.update(version, contributions, through)

    def alternate(self, parts: Sequence[Part], most_in_flight: int) -> Iterator[list[Action]]:
        """Steps that end with one backward each; no more than these parts are in flight."""
        forwarded = 0
        for turn, part in enumerate(parts):
            step: list[Action] = []
            while forwarded < min(turn + most_in_flight, len(parts)):
                step += self.forward(parts[forwarded])
                forwarded += 1
            at_once = bool(step) and parts[forwarded - 1] == part
            step += self.backward(part, recompute=self.recompute and not at_once)
            yield step

    def forward_only(self) -> Iterator[Action]:
        for minibatch in range(self.replica, self.minibatches, len(self.replicas)):
            yield from self.forward((minibatch, 0))

    def taken_by(self, stage: int, part: Part) -> int:
        """The replica that takes this part, by round-robin, so that nobody has to coordinate."""
        minibatch, microbatch = part
        replicas = self.pipeline.stages[stage]
        return replicas[(minibatch * self.microbatches + microbatch) % len(replicas)]

    def forward(self, part: Part) -> Iterator[Action]:
        for edge in self.pipeline.incoming(self.stage):
            message = Message("activation", edge.source, self.stage, *part)
            yield Receive(message, self.taken_by(edge.source, part))
        yield Forward(*part)
        for edge in self.pipeline.outgoing(self.stage):
            message = Message("activation", self.stage, edge.target, *part)
            yield Send(message, self.taken_by(edge.target, part))

    def backward(self, part: Part, *, recompute: bool) -> Iterator[Action]:
        if recompute:
            yield Recompute(*part)
        for edge in self.pipeline.outgoing(self.stage):
            if edge.differentiable:
                message = Message("gradient", edge.target, self.stage, *part)
                yield Receive(message, self.taken_by(edge.target, part))
        yield Backward(*part)
        for edge in self.pipeline.incoming(self.stage):
            if edge.differentiable:
                message = Message("gradient", self.stage, edge.source, *part)
                yield Send(message, self.taken_by(edge.source, part))

    def update(self, version: int, contributions: int, through: int) -> Iterator[Action]:
        if len(self.replicas) > 1:
            yield AllReduce(version, self.replicas)
        if self.share_norm and len(self.pipeline.stages) > 1:
            yield AllReduce(version, self.pipeline.workers, "squared_norm")
        yield Update(version, contributions, through)


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
