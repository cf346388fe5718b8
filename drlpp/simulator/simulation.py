"""Playing a placement's schedule with the costs of its workload on a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise

import numpy

from drlpp.costs.memory import MemoryModel
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import WorkerUsage
from drlpp.placement.placement import Placement
from drlpp.schedule.actions import Receive, Send
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import TimedAction
from drlpp.simulator.playing.costs import Pricing
from drlpp.simulator.playing.endless import endless_program
from drlpp.simulator.playing.program import ARRIVED, Program
from drlpp.simulator.steady_state import Enough, SteadyState, find_steady_state, run_of
from drlpp.specs.cluster import Cluster

_LONG_WINDOW = 512
"""Minibatches that are measured where there is no period."""


@dataclass(frozen=True)
class Simulation:
    """A placement that was played; seconds count from the start of the run.

    Attributes:
        placement: that was played.
        pipeline: its shape.
        method: the schedule and the weight policy on it.
        window: which minibatches count: whole periods, of which the first is the first that is
            known to be steady, or a long window where there is none.
        steady: its steady state; a long run where a round of updates is too long to look for one
            (:func:`drlpp.simulator.playing.endless.endless_program`).
        pricing: what its steps cost.
    """

    placement: Placement
    pipeline: Pipeline
    method: Method
    window: Window
    steady: SteadyState = field(repr=False)
    pricing: Pricing = field(repr=False)
    _memory: MemoryModel = field(repr=False)

    @property
    def seconds_per_minibatch(self) -> float:
        """Seconds in steady state: exact over a period.

        Where none was found they are those of the slowest worker over a long window.
        """
        return self.steady.seconds / self.steady.minibatches

    @property
    def error_bar(self) -> float:
        """How far off the seconds may be (:meth:`drlpp.costs.workload.Workload.error_bar`)."""
        return self.pricing.placed.workload.error_bar(self.placement)

    @property
    def steadiness(self) -> float:
        """The seconds of the fastest worker for the window's minibatches over the slowest's.

        1 over a period, less while work piles up between them.
        """
        return self.steady.steadiness

    @cached_property
    def completions(self) -> tuple[float, ...]:
        """When the minibatches of the window were complete: at its begin, and after every step.

        All stages had then performed the update that contains them.
        """
        steady, window = self.steady, self.window
        begin, *others = steady.completions(window.step)
        turns = range(window.length // steady.minibatches)
        return (begin, *(time + turn * steady.seconds for turn in turns for time in others))

    @cached_property
    def memory_bytes(self) -> tuple[float, ...]:
        """The most that a worker needs, by index in the program."""
        program, placed, parts = self.program, self.pricing.placed, self.method.microbatches
        held = [stage for stages in program.stages_of for stage in stages]
        holders = [index for index, stages in enumerate(program.stages_of) for _ in stages]
        of_stages = self._memory.stage_bytes(
            replace(placed.work, working_bytes=placed.working_bytes).chosen(held),
            numpy.array(program.in_flight),
            placed.replicas[held].astype(numpy.float64),
            held,
            counted=True,
        )
        half_done_bytes = placed.total(placed.workload.half_done_bytes)[held] / parts
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
        """What every worker did in the window and needed, by worker."""
        seconds = self.window_seconds
        usages = []
        for index, worker in enumerate(self.accelerators):
            busy = self.steady.busy_seconds(index, self.window.length)
            usages.append(
                WorkerUsage(
                    worker=worker,
                    stage=self.pipeline.stage_of(worker),
                    busy_seconds=busy,
                    waiting_seconds=max(0.0, seconds - busy),
                    peak_memory_bytes=round(self.memory_bytes[index]),
                )
            )
        return tuple(sorted(usages, key=lambda usage: usage.worker))

    @property
    def utilisation(self) -> dict[int, float]:
        """The part of the window that every worker computes; the rest is its bubble."""
        seconds = self.window_seconds or 1.0
        return {usage.worker: usage.busy_seconds / seconds for usage in self.workers}

    @cached_property
    def accelerators(self) -> tuple[int, ...]:
        """The worker of every index in the program."""
        return tuple(self.pipeline.stages_by_worker)

    @property
    def program(self) -> Program:
        """The beginning of its schedule, or all of it, with workers and routes by index."""
        return self.steady.program

    @cached_property
    def run(self) -> SteadyState:
        """The run that live workers would make for the window, filling and draining included."""
        return run_of(self.pipeline, self.method, self.window, self.pricing)

    @property
    def schedule(self) -> Schedule:
        """The schedule of :attr:`run`."""
        return self.method.schedule_for(self.pipeline, self.window.minibatches)

    @cached_property
    def timeline(self) -> tuple[TimedAction, ...]:
        """All actions of :attr:`run` by start, in seconds.

        A receive takes no time and stands at the moment when it is done. An all-reduce takes as
        long as a worker waits for it: buckets that travel during a backward are in the backward.
        """
        schedule, timed = self.schedule, []
        for index, worker in enumerate(self.accelerators):
            steps = list(self.run.played.steps_of(index))
            times = ((step.begin, step.end) for step in steps if step.kind != ARRIVED)
            arrived = chain.from_iterable(step.arrived for step in steps)
            now = 0.0
            for action in schedule.actions[worker]:
                start = now
                if isinstance(action, Receive):
                    start = now = max(now, next(arrived))
                elif not isinstance(action, Send):
                    start, now = next(times)
                timed.append(TimedAction(worker, action, start, now))
        return tuple(sorted(timed, key=lambda timed_action: timed_action.start))


def simulate(
    workload: Workload,
    cluster: Cluster,
    placement: Placement,
    method: Method = DEFAULT_METHOD,
    minibatches: int = 30,
    memory: MemoryModel | None = None,
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
    """
    return simulate_stages(PlacedStages(workload, placement), cluster, method, minibatches, memory)


def simulate_stages(
    placed: PlacedStages,
    cluster: Cluster,
    method: Method,
    minibatches: int = 30,
    memory: MemoryModel | None = None,
    enough: Enough | None = None,
) -> Simulation:
    """Play the stages of a placement, of which much may be known already.

    Args:
        placed, cluster, method, minibatches, memory: as in :func:`simulate`.
        enough: for those who need not know it exactly
            (:func:`drlpp.simulator.steady_state.find_steady_state`).
    """
    pricing, pipeline = Pricing(placed, cluster, method), placed.pipeline
    endless = endless_program(pipeline.numbered, method)
    if endless is None:
        window = Window.plan(pipeline, max(minibatches, _LONG_WINDOW), method)
        steady = run_of(pipeline, method, window, pricing)
    else:
        steady = find_steady_state(endless, pricing.of, enough)
        window = steady.window(pipeline, method, minibatches)
    memory = replace(memory or MemoryModel(), method=method)
    return Simulation(placed.placement, pipeline, method, window, steady, pricing, memory)
