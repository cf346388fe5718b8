"""Programs of shapes, compiled for all workers at once, without a list of actions for each.

A search comes by many shapes, whose workers compute in few orders; these are kept. All else follows
from them: of m replicas the one with number p mod m takes part p, so it is known on which routes
the steps of the others wait and send. The program is that of the schedule's actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice, product

import numpy

from drlpp.costs.placed_stages import Flags
from drlpp.costs.stage_cost import Indices
from drlpp.schedule.actions import (
    COMPUTATIONS,
    Backward,
    BackwardInput,
    Forward,
    Update,
)
from drlpp.schedule.kinds.kind import Share
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.lowering import with_recomputation, with_whole_backwards
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator.playing.program import (
    AWAIT_SUM,
    FINISH_SUM,
    HELD,
    JOIN_SUM,
    SUMMED_BACKWARD,
    Program,
    Route,
    Steps,
    Sum,
    begins_of,
)

_FORWARD, _BACKWARD, _INPUT, _UPDATE = map(
    COMPUTATIONS.index, (Forward, Backward, BackwardInput, Update)
)
_HELD_BY = numpy.array([HELD.get(kind, (0, 0)) for kind in COMPUTATIONS]).T


def program_of(
    shape: Pipeline, method: Method, minibatches: int, through: int | None = None
) -> Program:
    """Return the program of a schedule.

    Args:
        shape: whose workers are numbered by stage.
        method: that runs it.
        minibatches: of the schedule.
        through: only its beginning, until the updates that contain the minibatches below this.
    """
    if shape.ties or shape.is_folded or method.schedule_kind.stages_held > 1:
        return Program.of(method.schedule_for(shape, minibatches, through))
    orders = _orders(shape, method, minibatches, through)
    counts = numpy.array([len(kinds) for kinds, _ in orders])
    kinds, parts = (numpy.concatenate(columns) for columns in zip(*orders, strict=True))
    replicas = numpy.array(list(map(len, shape.stages)))
    workers = numpy.repeat(numpy.arange(len(counts)), counts)
    stages = numpy.repeat(numpy.arange(len(replicas)), replicas)[workers]
    sums, of_stage, of_all = _sums(replicas.tolist(), method)
    # Before an update stand the sums of the replicas' gradients, then of the norm.
    updates, firsts = kinds == _UPDATE, begins_of(counts)[:-1]
    gradients, norms = updates & (of_stage[stages] >= 0), updates & (of_all[stages] >= 0)
    places = numpy.arange(len(kinds)) + numpy.cumsum(gradients) + numpy.cumsum(norms)
    step_kinds, step_sums = numpy.full((2, places[-1] + 1), -1)
    step_kinds[places] = kinds
    step_kinds[places[norms] - 1], step_sums[places[norms] - 1] = AWAIT_SUM, of_all[stages[norms]]
    summed = numpy.flatnonzero(gradients)
    joins, joined = places[summed] - norms[summed] - 1, of_stage[stages[summed]]
    backward = _last(kinds == _BACKWARD)[summed]
    overlaps = backward > numpy.maximum(_last(updates)[summed - 1], firsts[workers[summed]] - 1)
    step_kinds[joins], step_sums[joins] = numpy.where(overlaps, FINISH_SUM, JOIN_SUM), joined
    step_kinds[places[backward[overlaps]]] = SUMMED_BACKWARD
    step_sums[places[backward[overlaps]]] = joined[overlaps]
    waits, sends = _messages(shape, kinds, parts, workers, stages)
    routes, waited, sent = _routes(shape, len(counts), waits, sends)
    step_counts = counts + numpy.add.reduceat(gradients.astype(int) + norms, firsts)
    updated = places[updates] - begins_of(step_counts)[workers[updates]]
    throughs = zip(updated.tolist(), parts[updates].tolist(), strict=True)
    return Program(
        stages_of=tuple((stage,) for stage, count in enumerate(replicas) for _ in range(count)),
        steps=Steps(
            counts=step_counts,
            kinds=step_kinds,
            sums=step_sums,
            waiting=numpy.bincount(places[waits[0]], minlength=len(step_kinds)),
            sending=numpy.bincount(places[sends[0]], minlength=len(step_kinds)),
            waits=waited,
            sends=sent,
        ),
        routes=routes,
        sums=sums,
        in_flight=_most(_HELD_BY[0][kinds], firsts),
        half_done=_most(_HELD_BY[1][kinds], firsts),
        updates=tuple(
            tuple(islice(throughs, count))
            for count in numpy.add.reduceat(updates.astype(int), firsts).tolist()
        ),
    )


Order = tuple[Indices, Indices]
"""Kinds of computations, and their parts; those of an update are the minibatches it completes."""


def _orders(shape: Pipeline, method: Method, minibatches: int, through: int | None) -> list[Order]:
    """Return what every worker computes."""
    in_flight, kind = method.in_flight(shape), method.schedule_kind
    found = []
    for stage, workers in enumerate(shape.stages):
        count, together = len(workers), method.minibatches_of_update(len(workers))
        whole = not any(edge.differentiable for edge in shape.incoming(stage))
        share = Share(
            replica=0,
            replicas=count,
            stage=0,
            stages=1,
            stages_held=1,
            in_flight=in_flight[stage],
            most_in_flight=max(in_flight) if kind.splits_backward else in_flight[stage],
            minibatches=minibatches,
            microbatches=method.microbatches,
            together=together,
        )
        parts_of_replica, uneven = divmod(together * method.microbatches, count)
        alike = through is not None and not uneven
        if alike:
            # As one replica that takes all of the parts, of which there may be more behind.
            enough = (minibatches * method.microbatches // count).bit_length()
            share = replace(
                share,
                replicas=1,
                minibatches=1 << enough,
                microbatches=1,
                together=parts_of_replica,
            )
        for replica in range(count):
            if alike:
                kinds, parts = _order(kind.name, share, whole, method.recomputes(stage))
                passes, updates = count * parts + replica, count * parts // method.microbatches
                parts = numpy.where(kinds == _UPDATE, updates, passes)
            else:
                one = replace(share, replica=replica)
                kinds, parts = _order(kind.name, one, whole, method.recomputes(stage))
            if through is not None:
                end = int(numpy.argmax((kinds == _UPDATE) & (parts >= through))) + 1
                kinds, parts = kinds[:end], parts[:end]
            found.append((kinds, parts))
    return found


@lru_cache(maxsize=8192)
def _order(kind: str, share: Share, whole_backwards: bool, recompute: bool) -> Order:
    computations = SCHEDULE_KINDS[kind].order(share)
    if whole_backwards:
        computations = with_whole_backwards(computations)
    if recompute:
        computations = with_recomputation(computations)
    found = [
        (_UPDATE, one.through)
        if isinstance(one, Update)
        else (COMPUTATIONS.index(type(one)), one.minibatch * share.microbatches + one.microbatch)
        for one in computations
    ]
    kinds, parts = numpy.array(found).T
    return kinds, parts


def _sums(replicas: Sequence[int], method: Method) -> tuple[tuple[Sum, ...], Indices, Indices]:
    """Return the kinds of sums, and for every stage which it makes of its own and of the norm."""
    sums: dict[Sum, int] = {}
    found = []
    for stage, count in enumerate(replicas):
        own = sums.setdefault(Sum(stage, count), len(sums)) if count > 1 else -1
        shared = method.needs_norm and method.flushes and count < sum(replicas)
        norm = sums.setdefault(Sum(-1, sum(replicas)), len(sums)) if shared else -1
        found.append((own, norm))
    of_stage, of_all = numpy.array(found).T
    return tuple(sums), of_stage, of_all


def _last(happens: Flags) -> Indices:
    """Return for every place the last one until it at which something happens, or −1."""
    return numpy.maximum.accumulate(numpy.where(happens, numpy.arange(len(happens)), -1))


def _most(changes: Indices, firsts: Indices) -> tuple[int, ...]:
    """Return the most that every worker comes to hold."""
    held = numpy.cumsum(changes)
    return tuple((numpy.maximum.reduceat(held, firsts) - (held - changes)[firsts]).tolist())


Messages = tuple[Indices, Indices]
"""Which computation waits or sends, and on what: (edge, whether it is a gradient, from, to)."""


def _messages(
    shape: Pipeline, kinds: Indices, parts: Indices, workers: Indices, stages: Indices
) -> tuple[Messages, Messages]:
    """Return what computations wait for, and what they send."""
    numbers = {edge: number for number, edge in enumerate(shape.edges)}
    replicas = numpy.array(list(map(len, shape.stages)))
    first_worker = begins_of(replicas)
    backward = (kinds == _BACKWARD) | (kinds == _INPUT)
    passing = numpy.flatnonzero(backward | (kinds == _FORWARD))
    of_pass = 2 * stages[passing] + backward[passing]

    def found(*, waits: bool) -> Messages:
        edges: list[tuple[int, int]] = []
        counts = []
        for stage, returns in product(range(len(replicas)), (False, True)):
            into = waits != returns
            chosen = [
                (numbers[edge], edge.source if into else edge.target)
                for edge in (shape.incoming(stage) if into else shape.outgoing(stage))
                if edge.differentiable or not returns
            ]
            edges += chosen
            counts.append(len(chosen))
        each = numpy.array(counts)[of_pass]
        computation = numpy.repeat(passing, each)
        number = numpy.arange(len(computation)) - numpy.repeat(begins_of(each)[:-1], each)
        edge, other = numpy.array(edges or [(0, 0)]).T[
            :, numpy.repeat(begins_of(counts)[of_pass], each) + number
        ]
        peer = first_worker[other] + parts[computation] % replicas[other]
        ends = (peer, workers[computation]) if waits else (workers[computation], peer)
        return computation, numpy.stack([edge, backward[computation], *ends])

    return found(waits=True), found(waits=False)


def _routes(
    shape: Pipeline, workers: int, waits: Messages, sends: Messages
) -> tuple[tuple[Route, ...], Indices, Indices]:
    """Return routes as they come, worker by worker, and those of what is waited for and sent."""
    order = numpy.argsort(numpy.concatenate([2 * waits[0], 2 * sends[0] + 1]), kind="stable")
    dimensions = (max(len(shape.edges), 1), 2, workers, workers)
    keys = numpy.ravel_multi_index(
        numpy.concatenate([waits[1], sends[1]], axis=1)[:, order], dimensions
    )
    known, first, number = numpy.unique(keys, return_index=True, return_inverse=True)
    by_turn = numpy.argsort(first)
    routes = []
    for edge_number, returns, sender, receiver in zip(
        *(column.tolist() for column in numpy.unravel_index(known[by_turn], dimensions)),
        strict=True,
    ):
        edge = shape.edges[edge_number]
        if returns:
            routes.append(Route("gradient", edge.target, edge.source, sender, receiver))
        else:
            routes.append(Route("activation", edge.source, edge.target, sender, receiver))
    found = numpy.empty(len(order), dtype=int)
    found[order] = numpy.argsort(by_turn)[number]
    return tuple(routes), found[: len(waits[0])], found[len(waits[0]) :]
