"""The run of a placement as live workers make it: a schedule with a window, and its timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from drlpp.schedule.actions import Backward, Forward, Receive, Send
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import TimedAction
from drlpp.simulator.playing.costs import Costs
from drlpp.simulator.playing.events import Played
from drlpp.simulator.playing.program import ARRIVED, Program, no_search_for_cycles

_CACHED_PASSES = 5_000
"""Programs of more forward passes are compiled anew each time, since they take much memory."""


@dataclass(frozen=True)
class Plan:
    """A run that begins and ends empty, for pipelines of one shape, whatever their costs.

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
    def of(cls, pipeline: Pipeline, method: Method, window: Window) -> Plan:
        """Compile a schedule that is as long as the window needs."""
        with no_search_for_cycles():
            program = Program.of(method.schedule_for(pipeline, window.minibatches))
        return cls(window, program, tuple(program.marks(window)))


_cached_plan = lru_cache(maxsize=64)(Plan.of)


def plan_for(pipeline: Pipeline, method: Method, window: Window) -> Plan:
    """Return the plan for the shape of a pipeline; the numbers of its workers do not matter."""
    passes = len(pipeline.stages) * window.minibatches * method.microbatches
    make = _cached_plan if passes <= _CACHED_PASSES else Plan.of
    return make(pipeline.numbered, method, window)


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
    """Return the part of a pass that a worker predicts weights in."""
    predicting, whole = costs.prediction_seconds[index][backward], costs.seconds[index][backward]
    return predicting / whole if predicting else 0.0
