"""Playing a placement's schedule with the costs of its workload on a cluster."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import getitem

import numpy

from drlpp.costs.analytic_model import pipeline_of
from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import WorkerUsage
from drlpp.placement.placement import Placement
from drlpp.schedule.actions import Backward, Forward, Receive, Send
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule
from drlpp.simulator.costs import Costs
from drlpp.simulator.events import Played, play
from drlpp.simulator.program import ARRIVED, Program
from drlpp.simulator.work import PassOverhead, PlacedWork
from drlpp.specs.cluster import Cluster
from drlpp.timeline.timeline import TimedAction

_CACHED_PASSES = 5_000
"""Programs of more forward passes are compiled anew each time, since they take much memory."""


@dataclass(frozen=True)
class Plan:
    """What is played for pipelines of one shape, whatever their costs.

    Attributes:
        window: that is measured.
        program: with workers numbered stage by stage.
        marks: for the begin and end of every step of the window the update of each worker that
            completes it.
    """

    window: Window
    program: Program
    marks: tuple[list[int], ...]

    @classmethod
    def of(cls, pipeline: Pipeline, method: Method, minibatches: int) -> Plan:
        """Compile a schedule that is long enough for a window of ``minibatches``."""
        window = Window.plan(pipeline, minibatches, method)
        with _no_search_for_cycles():
            program = Program.of(method.schedule_for(pipeline, window.minibatches))
        return cls(window, program, tuple(program.marks(window)))


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
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


_cached_plan = lru_cache(maxsize=256)(Plan.of)


def plan_for(pipeline: Pipeline, method: Method, minibatches: int) -> Plan:
    """Return the plan for the shape of a pipeline; the numbers of its workers do not matter."""
    numbers = {worker: number for number, worker in enumerate(pipeline.stages_by_worker)}
    stages = (tuple(numbers[worker] for worker in workers) for workers in pipeline.stages)
    shape = Pipeline(tuple(stages), pipeline.edges, pipeline.ties)
    filling = (1 + method.in_flight_per_link) * len(shape.workers)
    passes = len(pipeline.stages) * (minibatches + 2 * filling) * method.microbatches
    make = _cached_plan if passes <= _CACHED_PASSES else Plan.of
    return make(shape, method, minibatches)


@dataclass(frozen=True)
class Simulation:
    """A placement as it was played; seconds count from the start of the run.

    Attributes:
        placement: that was played.
        pipeline: its shape.
        method: the schedule and the weight policy on it.
        plan: what was played.
        costs: of its steps.
        played: when everything happened.
        completions: when the minibatches of the window were complete: at its begin, and after
            every step. All stages had then performed the update that contains them.
        memory_bytes: the most that a worker needs, by index in the program.
    """

    placement: Placement
    pipeline: Pipeline
    method: Method
    plan: Plan = field(repr=False)
    costs: Costs = field(repr=False)
    played: Played = field(repr=False)
    completions: tuple[float, ...]
    memory_bytes: tuple[float, ...]

    @property
    def seconds_per_minibatch(self) -> float:
        """Seconds in steady state: the measured window divided by its minibatches."""
        return (self.completions[-1] - self.completions[0]) / self.plan.window.length

    def without_room(self, cluster: Cluster) -> int | None:
        """Return the first index in the program that needs more memory than its accelerator has."""
        for index, needed in enumerate(self.memory_bytes):
            limit = cluster.memory_bytes[self.accelerators[index]]
            if limit is not None and needed > limit:
                return index
        return None

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Seconds per minibatch of every step of the window."""
        step = self.plan.window.step
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
        usages = []
        begin, end = self.completions[0], self.completions[-1]
        for index, worker in enumerate(self.accelerators):
            busy = self._busy_seconds(index, begin, end)
            usages.append(
                WorkerUsage(
                    worker=worker,
                    stage=self.plan.program.stages_of[index][0],
                    busy_seconds=busy,
                    waiting_seconds=max(0.0, end - begin - busy),
                    peak_memory_bytes=round(self.memory_bytes[index]),
                    bytes_sent=round(self._bytes_sent[index]),
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
    def schedule(self) -> Schedule:
        """The schedule that was played."""
        return self.method.schedule_for(self.pipeline, self.plan.window.minibatches)

    @cached_property
    def timeline(self) -> tuple[TimedAction, ...]:
        """All actions by start, for :func:`drlpp.timeline.figure.draw`."""
        return timeline_of(self.schedule, self.plan.program, self.played, self.costs)

    def _busy_seconds(self, index: int, begin: float, end: float) -> float:
        busy = 0.0
        for (_, kind, _, _), (start, done) in zip(
            self.plan.program.steps[index],
            step_times(self.plan.program, self.played, index),
            strict=True,
        ):
            if done <= begin:
                continue
            if start >= end:
                break
            if kind >= 0:
                busy += min(done, end) - max(start, begin)
        return busy

    @cached_property
    def _bytes_sent(self) -> list[float]:
        program = self.plan.program
        sent = [0.0] * len(program.workers)
        for route in program.route_of:
            sent[program.routes[route].sender] += self.costs.message_bytes[route]
        return sent


def simulate(
    workload: Workload,
    cluster: Cluster,
    placement: Placement,
    method: Method = DEFAULT_METHOD,
    minibatches: int = 30,
    memory: MemoryModel | None = None,
) -> Simulation:
    """Play a valid placement, and measure it over a window as a live run is measured.

    Args:
        workload: what has to be computed and sent.
        cluster: the accelerators and their links.
        placement: of the workload's operators on them.
        method: the schedule, and the weight policy on it.
        minibatches: the least that the window has.
        memory: what a stage keeps; that of ``method`` with SGD and momentum if left out.
    """
    pipeline = pipeline_of(workload, placement)
    plan = plan_for(pipeline, method, minibatches)
    work = PlacedWork.of(workload, placement)
    overhead = PassOverhead.of(workload, placement, work, pipeline, method)
    costs = Costs.of(
        workload, cluster, placement, work, overhead, plan.program, method.microbatches
    )
    played = play(plan.program, costs)
    # Counted in the schedule, parts are in flight that planners have whole minibatches for.
    keeps = replace(memory or MemoryModel.with_state(method), microbatches=method.microbatches)
    program = plan.program
    held = [stage for stages in program.stages_of for stage in stages]
    holders = [index for index, stages in enumerate(program.stages_of) for _ in stages]
    of_stages = keeps.stage_bytes(
        work.memory.chosen(held),
        numpy.array(program.in_flight),
        numpy.array([len(pipeline.stages[stage]) for stage in held]),
    )
    half_done_bytes = work.half_done_bytes[held] / method.microbatches
    of_stages = of_stages + half_done_bytes * numpy.array(program.half_done)
    needed = numpy.bincount(holders, of_stages)
    return Simulation(
        placement=placement,
        pipeline=pipeline,
        method=method,
        plan=plan,
        costs=costs,
        played=played,
        completions=tuple(max(map(getitem, played.ends, steps)) for steps in plan.marks),
        memory_bytes=tuple(needed.tolist()),
    )


def step_times(program: Program, played: Played, worker: int) -> Iterator[tuple[float, float]]:
    """Begin and end of the steps of a worker, by its index; waiting for messages is before."""
    before = 0.0
    for (waits, _, _, _), end in zip(program.steps[worker], played.ends[worker], strict=True):
        yield max([before, *(played.arrivals[message] for message in waits)]), end
        before = end


def timeline_of(
    schedule: Schedule, program: Program, played: Played, costs: Costs
) -> tuple[TimedAction, ...]:
    """Return the actions of the schedule that ``program`` was compiled from, by start.

    A receive takes no time and stands at the moment when it is done. An all-reduce takes as long as
    a worker waits for it: buckets that travel during a backward are in the backward. Weights are
    predicted at the beginning of a pass.
    """
    timed = []
    for index, worker in enumerate(schedule.pipeline.stages_by_worker):
        times = (
            found
            for (_, kind, _, _), found in zip(
                program.steps[index], step_times(program, played, index), strict=True
            )
            if kind != ARRIVED
        )
        received = (message for waits, *_ in program.steps[index] for message in waits)
        now = 0.0
        for action in schedule.actions[worker]:
            start = now
            if isinstance(action, Receive):
                start = now = max(now, played.arrivals[next(received)])
            elif not isinstance(action, Send):
                start, now = next(times)
            predictions: tuple[tuple[float, float], ...] = ()
            if isinstance(action, Forward | Backward):
                part = _predicting_part(costs, index, backward=isinstance(action, Backward))
                predictions = ((start, start + part * (now - start)),) if part else ()
            timed.append(TimedAction(worker, action, start, now, predictions))
    return tuple(sorted(timed, key=lambda timed_action: timed_action.start))


def _predicting_part(costs: Costs, index: int, *, backward: bool) -> float:
    """Return the part of a pass that a worker predicts weights in.

    Passes that share cores take longer.
    """
    predicting, whole = costs.prediction_seconds[index][backward], costs.seconds[index][backward]
    return predicting / whole if predicting else 0.0
