"""Playing a placement's schedule with the costs of its workload on a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from operator import getitem

import numpy

from drlpp.costs.memory import MemoryModel
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import WorkerUsage
from drlpp.placement.placement import Placement
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.schedule.pipeline import Pipeline, senders_to_all
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import TimedAction
from drlpp.simulator.playing.costs import Costs
from drlpp.simulator.playing.endless import endless_for
from drlpp.simulator.playing.events import Played, play
from drlpp.simulator.playing.finite_run import Plan, plan_for, step_times, timeline_of
from drlpp.simulator.playing.program import Program
from drlpp.simulator.steady_state import Enough, SteadyState, find_steady_state
from drlpp.simulator.work import PassOverhead, PlacedWork
from drlpp.specs.cluster import Cluster

_LONG_WINDOW = 512
"""Minibatches that are measured where there is no period."""


@dataclass(frozen=True)
class _Pricing:
    """Everything that the costs of a program's steps follow from."""

    placed: PlacedStages
    cluster: Cluster
    method: Method
    work: PlacedWork
    overhead: PassOverhead

    def of(self, program: Program) -> Costs:
        return Costs.of(
            self.placed.workload,
            self.cluster,
            self.placed.placement,
            self.work,
            self.overhead,
            program,
            self.method.microbatches,
        )


@dataclass(frozen=True)
class Simulation:
    """A placement that was played; seconds count from the start of the run.

    Attributes:
        placement: that was played.
        pipeline: its shape.
        method: the schedule and the weight policy on it.
        minibatches: the least that the window has.
        steady: its steady state; None where a round of updates is too long to look for one
            (:func:`drlpp.simulator.playing.endless.endless_program`).
    """

    placement: Placement
    pipeline: Pipeline
    method: Method
    minibatches: int
    steady: SteadyState | None = field(repr=False)
    _memory: MemoryModel = field(repr=False)
    _pricing: _Pricing = field(repr=False)

    @property
    def seconds_per_minibatch(self) -> float:
        """Seconds in steady state: exact over a period.

        Where none was found they are those of the slowest worker over a long window.
        """
        if self.steady is not None:
            return self.steady.seconds / self.steady.minibatches
        return max(self._seconds_of_workers) / self.window.length

    @property
    def error_bar(self) -> float:
        """How far off the seconds may be (:meth:`drlpp.costs.workload.Workload.error_bar`)."""
        return self._pricing.placed.workload.error_bar(self.placement)

    @property
    def steadiness(self) -> float:
        """The seconds of the fastest worker for the window's minibatches over the slowest's.

        1 over a period, less while work piles up between them.
        """
        if self.steady is not None:
            return self.steady.steadiness
        slowest = max(self._seconds_of_workers)
        return min(self._seconds_of_workers) / slowest if slowest else 1.0

    @cached_property
    def window(self) -> Window:
        """Which minibatches count.

        They are whole periods, of which the first is the first that is known to be steady, or a
        long window where there is none.
        """
        least = self.minibatches if self.steady else max(self.minibatches, _LONG_WINDOW)
        window = Window.plan(self.pipeline, least, self.method)
        if self.steady is None:
            return window
        method, period = self.method, self.steady.minibatches
        return replace(
            window,
            # Nobody runs out of minibatches before it ends, however far ahead.
            tail=window.tail + method.minibatches_in_flight(self.pipeline),
            warm_up=self.steady.warm_up,
            length=-(-least // period) * period,
            step=method.accumulate
            if method.flushes
            else method.minibatches_together(self.pipeline),
        )

    @cached_property
    def completions(self) -> tuple[float, ...]:
        """When the minibatches of the window were complete: at its begin, and after every step.

        All stages had then performed the update that contains them.
        """
        if self.steady is None:
            return tuple(max(map(getitem, self.played.ends, steps)) for steps in self.plan.marks)
        steady, window = self.steady, self.window
        begin, *others = steady.completions(window.step)
        turns = range(window.length // steady.minibatches)
        return (begin, *(time + turn * steady.seconds for turn in turns for time in others))

    @cached_property
    def memory_bytes(self) -> tuple[float, ...]:
        """The most that a worker needs, by index in the program."""
        program = self.program
        work, parts = self._pricing.work, self.method.microbatches
        memory = replace(work.memory, working_bytes=self._pricing.placed.working_bytes)
        held = [stage for stages in program.stages_of for stage in stages]
        holders = [index for index, stages in enumerate(program.stages_of) for _ in stages]
        # Counted in the schedule, parts are in flight that planners have whole minibatches for.
        of_stages = replace(self._memory, microbatches=parts, passes=parts).stage_bytes(
            memory.chosen(held),
            numpy.array(program.in_flight),
            numpy.array([len(self.pipeline.stages[stage]) for stage in held]),
            held,
        )
        half_done_bytes = work.half_done_bytes[held] / parts
        of_stages = of_stages + half_done_bytes * numpy.array(program.half_done)
        return tuple(numpy.bincount(holders, of_stages).tolist())

    def without_room(self, cluster: Cluster) -> int | None:
        """Return the first index in the program that needs more memory than its accelerator has."""
        limits = cluster.memory_bytes
        if all(limit is None for limit in limits):
            return None
        for index, needed in enumerate(self.memory_bytes):
            limit = limits[self.accelerators[index]]
            if limit is not None and needed > limit:
                return index
        return None

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Seconds per minibatch of every step of the window."""
        step = self.window.step
        return tuple((later - earlier) / step for earlier, later in pairwise(self.completions))

    @property
    def window_seconds(self) -> float:
        """How long the measured window is."""
        return self.completions[-1] - self.completions[0]

    @cached_property
    def workers(self) -> tuple[WorkerUsage, ...]:
        """What every worker did in the window and needed, by worker.

        Bytes sent are of messages, over the whole run; those of all-reduces do not count, as they
        do not in a measurement.
        """
        seconds, sent = self.window_seconds, self._bytes_sent
        usages = []
        for index, worker in enumerate(self.accelerators):
            busy = self._busy_seconds(index)
            usages.append(
                WorkerUsage(
                    worker=worker,
                    stage=self.pipeline.stage_of(worker),
                    busy_seconds=busy,
                    waiting_seconds=max(0.0, seconds - busy),
                    peak_memory_bytes=round(self.memory_bytes[index]),
                    bytes_sent=round(sent[index]),
                )
            )
        return tuple(sorted(usages, key=lambda usage: usage.worker))

    @property
    def utilisation(self) -> dict[int, float]:
        """The part of the window that every worker computes; the rest is its bubble."""
        seconds = self.window_seconds or 1.0
        return {usage.worker: usage.busy_seconds / seconds for usage in self.workers}

    @property
    def bubble(self) -> dict[int, float]:
        """The part of the window that every worker waits."""
        return {worker: 1.0 - used for worker, used in self.utilisation.items()}

    @cached_property
    def accelerators(self) -> tuple[int, ...]:
        """The worker of every index in the program."""
        return tuple(self.pipeline.stages_by_worker)

    @property
    def program(self) -> Program:
        """The beginning of its schedule, or all of it, with workers and routes by index."""
        return self.plan.program if self.steady is None else self.steady.program.before

    @property
    def message_bytes(self) -> tuple[float, ...]:
        """The bytes of a message of every route of :attr:`program`."""
        return self.costs_of(self.program).message_bytes

    @cached_property
    def plan(self) -> Plan:
        """The run that live workers would make for the window, filling and draining included."""
        return plan_for(self.pipeline, self.method, self.window)

    def costs_of(self, program: Program) -> Costs:
        """Return what the steps of any program of this shape and method take."""
        return self._pricing.of(program)

    @cached_property
    def costs(self) -> Costs:
        """What the steps of :attr:`plan` take."""
        return self.costs_of(self.plan.program)

    @cached_property
    def played(self) -> Played:
        """When everything happens in the run of :attr:`plan`."""
        return play(self.plan.program, self.costs)

    @property
    def schedule(self) -> Schedule:
        """The schedule of :attr:`plan`."""
        return self.method.schedule_for(self.pipeline, self.window.minibatches)

    @cached_property
    def timeline(self) -> tuple[TimedAction, ...]:
        """All actions of :attr:`plan` by start, in seconds."""
        return timeline_of(self.schedule, self.plan.program, self.played, self.costs)

    @cached_property
    def _seconds_of_workers(self) -> tuple[float, ...]:
        """What the minibatches of the window took every worker, where there is no period."""
        marks = self.plan.marks
        return tuple(
            ends[last] - ends[first]
            for ends, first, last in zip(self.played.ends, marks[0], marks[-1], strict=True)
        )

    def _busy_seconds(self, index: int) -> float:
        if self.steady is None:
            begin, end = self.completions[0], self.completions[-1]
            return _computing(self.plan.program, self.played, index, begin, end)
        busy = self.steady.computing_seconds(index)
        return busy * self.window.length / self.steady.minibatches

    @cached_property
    def _bytes_sent(self) -> list[float]:
        """Of the run of :attr:`plan`, by index; replicas send the same."""
        sent = [0.0] * len(self.accelerators)
        for (_, source, target), bytes_ in self._pricing.work.message_bytes.items():
            senders = self.pipeline.stages[source]
            for sender in senders:
                if senders != self.pipeline.stages[target]:
                    index = self.accelerators.index(sender)
                    sent[index] += bytes_ * self.window.minibatches / len(senders)
        shared = self._pricing.work.ties.values()
        for tie, of_tie in zip(self.method.ties(self.pipeline), shared, strict=True):
            updates = -(-self.window.minibatches // tie.together)
            for other in tie.others:
                for source, target in ((other, tie.root), (tie.root, other)):
                    senders, receivers = self.pipeline.stages[source], self.pipeline.stages[target]
                    for sender, _ in senders_to_all(senders, receivers):
                        sent[self.accelerators.index(sender)] += of_tie.bytes_ * updates
        return sent


def _computing(program: Program, played: Played, index: int, begin: float, end: float) -> float:
    """Return what a worker computes between two moments."""
    busy = 0.0
    for (_, kind, _, _), (start, done) in zip(
        program.steps[index], step_times(program, played, index), strict=True
    ):
        if done <= begin:
            continue
        if start >= end:
            break
        if kind >= 0:
            busy += min(done, end) - max(start, begin)
    return busy


def simulate(
    workload: Workload,
    cluster: Cluster,
    placement: Placement,
    method: Method = DEFAULT_METHOD,
    minibatches: int = 30,
    memory: MemoryModel | None = None,
    enough: Enough | None = None,
) -> Simulation:
    """Play a valid placement until it is steady, and measure a period of it.

    Args:
        workload: what has to be computed and sent.
        cluster: the accelerators and their links.
        placement: of the workload's operators on them.
        method: the schedule, and the weight policy on it.
        minibatches: the least that the window has that is reported; seconds per minibatch do not
            depend on it.
        memory: what a stage keeps; that of ``method`` with SGD and momentum if left out.
        enough: for those who need not know it exactly
            (:func:`drlpp.simulator.steady_state.find_steady_state`).
    """
    placed = PlacedStages(workload, placement)
    pipeline, work = placed.pipeline, PlacedWork.of(placed)
    overhead = PassOverhead.of(workload, work, pipeline, method)
    factors = numpy.array([one.seconds for one in workload.run_factors(placement)])
    if (factors > 1).any():
        work, overhead = work.times(factors), overhead.times(factors)
    pricing = _Pricing(placed, cluster, method, work, overhead)
    endless = endless_for(pipeline, method)
    return Simulation(
        placement=placement,
        pipeline=pipeline,
        method=method,
        minibatches=minibatches,
        steady=None if endless is None else find_steady_state(endless, pricing.of, enough),
        _memory=memory or MemoryModel.with_state(method),
        _pricing=pricing,
    )
