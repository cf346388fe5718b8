"""What the times of a run's actions say: the measured window, and the timeline."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter

from drlpp.placement.measurement import LinkUsage, Measurement, WorkerUsage
from drlpp.runtime.ipc.protocol import RunResult
from drlpp.schedule.analysis.window import Window, completion_times, update_times
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import TimedAction


def measurement_of(
    schedule: Schedule,
    results: Mapping[int, RunResult],
    window: Window,
    links: tuple[LinkUsage, ...] = (),
) -> Measurement:
    """Return the measurement that the window of a run gives, with link times found after it."""
    ends = {worker: [end for _, end in result.times] for worker, result in results.items()}
    marks = window.marks(completion_times(schedule, ends))
    paces = []
    for times in update_times(schedule, ends).values():
        own = window.marks(times)
        paces.append(own[-1] - own[0])
    # From one completion to another it may be less: who is last at the end may have been ahead of
    # the others at the begin, and took longer than that.
    slowest = max(paces)
    steps = [(later - earlier) / window.step for earlier, later in pairwise(marks)]
    return Measurement(
        seconds_per_minibatch=slowest / window.length,
        median_seconds=statistics.median(steps),
        standard_deviation_seconds=statistics.stdev(steps) if len(steps) > 1 else 0.0,
        minibatches=window.length,
        steadiness=max(min(paces) / slowest, 0.0),
        workers=tuple(
            _usage(schedule, worker, results[worker], marks[0], marks[-1])
            for worker in sorted(schedule.actions)
        ),
        links=links,
    )


def _usage(
    schedule: Schedule, worker: int, result: RunResult, begin: float, end: float
) -> WorkerUsage:
    inside: Sequence[tuple[bool, float, float]] = [
        (
            action.span.computes,
            seconds := min(action_end, end) - max(action_begin, begin),
            # Of an action that the window's edge cuts, its share.
            processor_seconds * seconds / max(action_end - action_begin, 1e-9),
        )
        for action, (action_begin, action_end), processor_seconds in zip(
            schedule.actions[worker], result.times, result.processor_seconds, strict=True
        )
        if action_end > begin and action_begin < end
    ]
    return WorkerUsage(
        worker=worker,
        stage=schedule.pipeline.stage_of(worker),
        busy_seconds=sum(seconds for computes, seconds, _ in inside if computes),
        waiting_seconds=sum(seconds for computes, seconds, _ in inside if not computes),
        processor_seconds=sum(seconds for computes, _, seconds in inside if computes),
        peak_memory_bytes=result.peak_memory_bytes,
        bytes_sent=result.bytes_sent,
    )


def timeline_of(schedule: Schedule, results: Mapping[int, RunResult]) -> tuple[TimedAction, ...]:
    """Return all actions of a run as it was performed, in seconds since its first began."""
    start = min((begin for result in results.values() for begin, _ in result.times[:1]), default=0)
    timeline = []
    for worker, actions in schedule.actions.items():
        predictions = results[worker].predictions
        for action, (begin, end) in zip(actions, results[worker].times, strict=True):
            first, last = (bisect_left(predictions, m, key=itemgetter(0)) for m in (begin, end))
            inside = tuple((one - start, other - start) for one, other in predictions[first:last])
            timeline.append(TimedAction(worker, action, begin - start, end - start, inside))
    return tuple(timeline)
