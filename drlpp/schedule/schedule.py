"""A schedule is data: for every worker the list of actions that it performs, in order.

The runtime executes these lists, the simulator times them, the reference executor replays them
in one process, the timeline draws them, and the version difference s of weight prediction is
counted in them. What distinguishes the kinds of schedules is in ``drlpp/schedule/kinds/``, and
nowhere else.

Asynchronous 1F1B (pipedream §3.2) on four stages, minibatches 0, 1, 2, …; a backward takes as
long as two forwards, and every backward is followed by an update of its stage::

    stage 0   F0 F1 F2 F3 .. .. .. .. .. .. B0··· F4 B1··· F5 B2···
    stage 1      F0 F1 F2 .. .. .. .. B0··· F3 B1··· F4 B2··· F5
    stage 2         F0 F1 .. .. B0··· F2 B1··· F3 B2··· F4 B3···
    stage 3            F0 B0··· F1 B1··· F2 B2··· F3 B3··· F4
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import Action, AllReduce, Message, Receive, Send, Update
from drlpp.schedule.kinds.alternating import ONE_F_ONE_B
from drlpp.schedule.kinds.kind import Share
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.lowering import (
    Lowering,
    received_as_sent,
    with_recomputation,
    with_whole_backwards,
)
from drlpp.schedule.per_stage import of_stages
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.ties import ties_of, with_ties


@dataclass(frozen=True)
class Schedule:
    """The actions of every worker for ``minibatches`` minibatches, the pipeline empty at both ends.

    Attributes:
        kind: the name of one of :data:`drlpp.schedule.kinds.registry.SCHEDULE_KINDS`.
        pipeline: the stages, their workers, and the edges between them.
        minibatches: how many minibatches run, numbered from 0.
        microbatches: parts of a minibatch.
        actions: for every worker its actions in order.
    """

    kind: str
    pipeline: Pipeline
    minibatches: int
    microbatches: int
    actions: dict[int, tuple[Action, ...]]

    @property
    def flushes(self) -> bool:
        """Whether the pipeline is empty at every update."""
        return SCHEDULE_KINDS[self.kind].flushes


MOST_PASSES = 4_000_000
"""The most passes of all stages in one run.

The list of actions takes about 1 kB for each pass, and 10 µs.
"""


def check_length(pipeline: Pipeline, minibatches: int, microbatches: int = 1) -> None:
    """Check that a run is not too long to be written down.

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
    kind: str = ONE_F_ONE_B.name,
    microbatches: int = 1,
    *,
    accumulate: int = 1,
    in_flight_per_link: int | tuple[int, ...] = 0,
    recompute: bool | tuple[bool, ...] = False,
    share_norm: bool = False,
    through: int | None = None,
) -> Schedule:
    """Turn the shape of a placement into the list of actions of every worker.

    The kind orders the computations of every worker; :mod:`drlpp.schedule.lowering` adds
    recomputation and communication, :mod:`drlpp.schedule.ties` what copies of shared weights need.
    Of a stage with m replicas, replica p mod m takes the p-th part. A stage of an asynchronous
    schedule makes one update for the fewest whole multiples of ``accumulate`` minibatches that give
    each replica a part; the replicas all-reduce their gradients for it. On a single replicated
    stage this is plain data parallelism.

    Args:
        pipeline: the stages and their workers.
        minibatches: how many run.
        kind: the name of one of :data:`drlpp.schedule.kinds.registry.SCHEDULE_KINDS`.
        microbatches, accumulate, in_flight_per_link, recompute: as in
            :class:`drlpp.schedule.method.Method`, which checks that they fit the kind.
        share_norm: share the norm of all stages' gradients before an update. Only where a schedule
            flushes: otherwise stages make their updates at different times.
        through: every worker stops with the update that contains the minibatches below this; for
            looking at how a schedule begins.

    Raises:
        InvalidInput: for no minibatch or too many, lists of another length than the pipeline, a
            kind for another number of stages on a worker, or an order in which copies cannot be
            kept the same.
    """
    if minibatches < 1:
        raise InvalidInput(f"minibatches is {minibatches}; at least 1 is expected")
    chosen = SCHEDULE_KINDS[kind]
    check_length(pipeline, minibatches, microbatches)
    chosen.check_stages_held(pipeline)
    in_flight = pipeline.in_flight(in_flight_per_link)
    recomputing = of_stages(recompute, len(pipeline.stages))
    together = [
        chosen.minibatches_of_update(len(workers), accumulate, microbatches)
        for workers in pipeline.stages
    ]
    actions: dict[int, tuple[Action, ...]] = {}
    for stage, workers in enumerate(pipeline.stages):
        for replica, worker in enumerate(workers):
            if worker in actions:
                continue
            held = pipeline.stages_of(worker)
            share = Share(
                replica=replica,
                replicas=len(workers),
                stage=stage,
                stages=len(pipeline.stages),
                stages_held=len(held),
                in_flight=in_flight[stage],
                most_in_flight=max(in_flight),
                minibatches=minibatches,
                microbatches=microbatches,
                together=together[stage],
            )
            sends_nothing = [
                chunk
                for chunk, stage in enumerate(held)
                if not any(edge.differentiable for edge in pipeline.incoming(stage))
            ]
            computations = with_whole_backwards(chosen.order(share), sends_nothing)
            recomputed = [chunk for chunk, stage in enumerate(held) if recomputing[stage]]
            computations = with_recomputation(computations, recomputed)
            lowering = Lowering(pipeline, held, microbatches, share_norm)
            lowered = lowering.lower(computations)
            if through is not None and not pipeline.ties:
                lowered = _beginning(lowered, through)
            actions[worker] = tuple(lowered)
    if pipeline.ties and chosen.trains:
        ties = ties_of(pipeline, in_flight, together)
        actions = with_ties(
            actions, pipeline, ties, minibatches, microbatches, flushes=chosen.flushes
        )
    if pipeline.is_folded or pipeline.ties:
        actions = received_as_sent(actions)
    if pipeline.ties and through is not None:
        # What other stages do later says when copies are updated.
        actions = {w: tuple(_beginning(own, through)) for w, own in actions.items()}
    return Schedule(kind, pipeline, minibatches, microbatches, actions)


def _beginning(actions: Iterable[Action], through: int) -> Iterator[Action]:
    """Yield actions up to the update that contains the minibatches below a number."""
    for action in actions:
        yield action
        if isinstance(action, Update) and action.through >= through:
            return


def in_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Yield all actions of all workers in an order in which a single process can perform them.

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
