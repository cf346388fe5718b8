"""The program of asynchronous 1F1B as arrays, without its actions: searches need thousands.

A worker with n parts of a run, d of them in flight, performs d forwards before its first backward
and one before each other, and an update behind its last backward for it. So the step of each
follows from what is before it::

    F_j   j forwards               max(j − d + 1, 0) backwards
    B_i   min(d + i, n) forwards   i backwards

The program equals that of the actions, whose routes are numbered as they are met, worker by worker
and step by step.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Literal, NamedTuple, Self

import numpy

from drlpp.costs.placed_stages import Flags
from drlpp.costs.stage_cost import Indices
from drlpp.schedule.actions import Backward, Forward, Recompute, Update
from drlpp.schedule.kinds.alternating import ONE_F_ONE_B
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import of_stages
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import check_length
from drlpp.simulator.playing.program import (
    FINISH_SUM,
    JOIN_SUM,
    KINDS,
    SUMMED_BACKWARD,
    Program,
    Routes,
    Steps,
    Sum,
    begins_of,
    numbered,
)


def program_of(
    pipeline: Pipeline, method: Method, minibatches: int, through: int | None = None
) -> Program:
    """Return the program of a run.

    Args:
        pipeline: workers numbered stage by stage.
        method: the schedule.
        minibatches: of the run.
        through: every worker stops with the update that contains the minibatches below this.

    Raises:
        InvalidInput: as in :func:`drlpp.schedule.schedule.build_schedule`.
    """
    if method.schedule != ONE_F_ONE_B.name or pipeline.ties or pipeline.is_folded:
        return Program.of(method.schedule_for(pipeline, minibatches, through))
    check_length(pipeline, minibatches, method.microbatches)
    return _one_f_one_b(pipeline, method, minibatches, through or minibatches)


def _one_f_one_b(pipeline: Pipeline, method: Method, minibatches: int, through: int) -> Program:
    workers = _Workers.of(pipeline, method, minibatches, through)
    forwards, backwards, updates = workers.forwards(), workers.backwards(), workers.updates()
    total = int(workers.begins[-1])
    kinds, sums = numpy.empty(total, dtype=int), numpy.full(total, -1)
    kinds[forwards.steps], kinds[backwards.steps] = KINDS[Forward], KINDS[Backward]
    kinds[backwards.steps[workers.recomputes[backwards.workers]] - 1] = KINDS[Recompute]
    kinds[updates.steps] = KINDS[Update]
    summed = workers.replicas[updates.workers] > 1
    steps, taking = updates.steps[summed] - 1, updates.taking[summed]
    replicated = numpy.cumsum([len(held) > 1 for held in pipeline.stages]) - 1
    sums[steps] = replicated[workers.stages[updates.workers[summed]]]
    kinds[steps] = numpy.where(taking, FINISH_SUM, JOIN_SUM)
    sums[steps[taking] - 1], kinds[steps[taking] - 1] = sums[steps[taking]], SUMMED_BACKWARD

    ways = _Ways(pipeline)
    waits = ways.of(forwards, "target").and_(ways.of(backwards, "source", back=True))
    sends = ways.of(forwards, "source").and_(ways.of(backwards, "target", back=True))
    waiting, sending = (numpy.bincount(one.steps, minlength=total) for one in (waits, sends))
    # A step waits before it sends.
    begins = begins_of(waiting + sending)
    met, sent = numpy.empty(begins[-1], dtype=int), numpy.zeros(begins[-1], dtype=bool)
    met[begins[waits.steps] + waits.numbers] = waits.routes
    places = begins[sends.steps] + waiting[sends.steps] + sends.numbers
    met[places], sent[places] = sends.routes, True
    met, routes = ways.renumbered(met)
    own_steps = updates.steps - workers.begins[updates.workers]
    made = list(zip(own_steps.tolist(), updates.through.tolist(), strict=True))
    return Program(
        stages_of=tuple((stage,) for stage in workers.stages.tolist()),
        steps=Steps(
            counts=numpy.diff(workers.begins),
            kinds=kinds,
            sums=sums,
            waiting=waiting,
            sending=sending,
            waits=met[~sent],
            sends=met[sent],
        ),
        routes=routes,
        sums=tuple(
            Sum(stage, len(held)) for stage, held in enumerate(pipeline.stages) if len(held) > 1
        ),
        in_flight=tuple(numpy.minimum(workers.depth, workers.own).tolist()),
        half_done=(0,) * len(workers.stages),
        updates=tuple(
            tuple(made[first:last]) for first, last in pairwise(begins_of(workers.made).tolist())
        ),
    )


class _Passes(NamedTuple):
    """Forwards or backwards of all workers: whose, of which stage, in which step, of which part."""

    workers: Indices
    stages: Indices
    steps: Indices
    parts: Indices


class _Updates(NamedTuple):
    """Updates of all workers.

    Attributes:
        workers: whose.
        steps: among those of all workers.
        through: the minibatches that its weights contain.
        taking: whether the worker has a part of it.
    """

    workers: Indices
    steps: Indices
    through: Indices
    taking: Flags


class _Workers(NamedTuple):
    """How the steps of the workers are laid out.

    Attributes:
        stages, replicas, replica: what each holds, how many do, and which of them it is.
        depth: parts that it has in flight.
        together: minibatches of an update.
        recomputes: whether a backward needs it.
        own: its parts in the run.
        passed: of these, the ones with a backward.
        made: its updates.
        begins: its first step, then where the last one's end.
        minibatches, microbatches: of the run.
    """

    stages: Indices
    replicas: Indices
    replica: Indices
    depth: Indices
    together: Indices
    recomputes: Flags
    own: Indices
    passed: Indices
    made: Indices
    begins: Indices
    minibatches: int
    microbatches: int

    @classmethod
    def of(cls, pipeline: Pipeline, method: Method, minibatches: int, through: int) -> Self:
        """Lay out the workers of a pipeline."""
        held = numpy.array(list(map(len, pipeline.stages)))
        recompute = numpy.array(of_stages(method.recompute, len(held)))
        stages, replica = numbered(held)
        replicas = held[stages]
        depth = numpy.array(method.in_flight(pipeline))[stages]
        together = method.minibatches_of_update(held)[stages]
        made = -(-through // together)
        passed, own = (
            _own(replica, replicas, most * method.microbatches)
            for most in (numpy.minimum(made * together, minibatches), minibatches)
        )
        # A backward just behind its forward recomputes nothing.
        recomputes = recompute[stages] & (numpy.minimum(depth, own) > 1)
        forwards = numpy.minimum(passed + depth - 1, own)
        counts = forwards + passed * (1 + recomputes) + made * (1 + (replicas > 1))
        return cls(
            stages, replicas, replica, depth, together, recomputes, own, passed, made,
            begins_of(counts), minibatches, method.microbatches,
        )  # fmt: skip

    def forwards(self) -> _Passes:
        """Return the forwards: as many before the last backward as may be in flight."""
        worker, number = numbered(numpy.minimum(self.passed + self.depth - 1, self.own))
        backwards = numpy.maximum(number - self.depth[worker] + 1, 0)
        return self._passes(worker, number, number, backwards)

    def backwards(self) -> _Passes:
        """Return the backwards."""
        worker, number = numbered(self.passed)
        forwards = numpy.minimum(number + self.depth[worker], self.own[worker])
        found = self._passes(worker, number, forwards, number)
        return found._replace(steps=found.steps + self.recomputes[worker])

    def updates(self) -> _Updates:
        """Return the updates."""
        worker, number = numbered(self.made)
        through = numpy.minimum((number + 1) * self.together[worker], self.minibatches)
        before, done = (
            _own(self.replica[worker], self.replicas[worker], minibatches * self.microbatches)
            for minibatches in (number * self.together[worker], through)
        )
        forwards = numpy.minimum(done + self.depth[worker] - 1, self.own[worker])
        steps = self._step(worker, forwards, done, number) + (self.replicas[worker] > 1)
        return _Updates(worker, steps, through, done > before)

    def _passes(
        self, worker: Indices, number: Indices, forwards: Indices, backwards: Indices
    ) -> _Passes:
        """Return own parts' passes, by what is before them."""
        replica, replicas = self.replica[worker], self.replicas[worker]
        together = self.together[worker] * self.microbatches
        updates = (replica + backwards * replicas) // together
        steps = self._step(worker, forwards, backwards, updates)
        return _Passes(worker, self.stages[worker], steps, replica + number * replicas)

    def _step(
        self, worker: Indices, forwards: Indices, backwards: Indices, updates: Indices
    ) -> Indices:
        """Return the step behind so many."""
        return (
            self.begins[worker]
            + forwards
            + backwards * (1 + self.recomputes[worker])
            + updates * (1 + (self.replicas[worker] > 1))
        )


def _own(replica: Indices, replicas: Indices, parts: Indices | int) -> Indices:
    """Return how many of a run's first parts each replica takes."""
    return -((replica - parts) // replicas)


class _Messages(NamedTuple):
    """Messages that steps wait for or send: the step, which of the step's it is, and its route."""

    steps: Indices
    numbers: Indices
    routes: Indices

    def and_(self, others: _Messages) -> _Messages:
        """Return these and those of other steps."""
        return _Messages(*map(numpy.concatenate, zip(self, others, strict=True)))


class _Ways:
    """Routes between stages: between m and n replicas one for each part modulo lcm(m, n).

    Those of gradients are numbered behind those of activations.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.replicas = numpy.array(list(map(len, pipeline.stages)))
        self.firsts = begins_of(self.replicas)
        ends = [(edge.source, edge.target) for edge in pipeline.edges]
        self.ends = numpy.array(ends, dtype=int).reshape(-1, 2)
        self.begins = begins_of(numpy.lcm(*self.replicas[self.ends].T))

    def of(
        self, passes: _Passes, end: Literal["source", "target"], *, back: bool = False
    ) -> _Messages:
        """Return the messages of passes over the edges that they are an end of, gradients if back.

        A pass of a stage has them in the order of its edges.
        """
        at_stage: list[list[int]] = [[] for _ in self.replicas]
        for index, one in enumerate(self.pipeline.edges):
            if one.differentiable or not back:
                at_stage[getattr(one, end)].append(index)
        begins = begins_of(list(map(len, at_stage)))
        pass_, number = numbered(numpy.diff(begins)[passes.stages])
        edge = numpy.fromiter(chain(*at_stage), dtype=int)[begins[passes.stages[pass_]] + number]
        routes = self.begins[edge] + passes.parts[pass_] % numpy.diff(self.begins)[edge]
        return _Messages(passes.steps[pass_], number, routes + back * self.begins[-1])

    def renumbered(self, met: Indices) -> tuple[Indices, Routes]:
        """Return routes as they are numbered when they are met, and what they are."""
        first = numpy.full(2 * self.begins[-1], -1)
        first[met[::-1]] = numpy.arange(len(met))[::-1]
        found = numpy.flatnonzero(first >= 0)
        found = found[numpy.argsort(first[found])]
        numbers = numpy.empty_like(first)
        numbers[found] = numpy.arange(len(found))
        back, place = numpy.divmod(found, max(1, self.begins[-1]))
        edge = numpy.searchsorted(self.begins, place, "right") - 1
        # Gradients go from the end of an edge to its begin.
        sources, targets = numpy.where(back, self.ends[edge, ::-1].T, self.ends[edge].T)
        senders, receivers = (
            self.firsts[stage] + (place - self.begins[edge]) % self.replicas[stage]
            for stage in (sources, targets)
        )
        no_ties = numpy.full(len(found), -1)
        return numbers[met], Routes(sources, targets, senders, receivers, no_ties)
