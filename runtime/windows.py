"""From the times of actions to seconds per minibatch: the measured window of a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from drlpp.measurement import Measurement, WorkerUsage
from drlpp.pipeline import Pipeline
from drlpp.runtime.commands import RunResult
from drlpp.schedule import Backward, Forward, Recompute, Schedule, Update
from drlpp.training_options import Method


@dataclass(frozen=True)
class Window:
    """Which minibatches of a run are measured: ``length`` of them after ``warm_up`` others.

    ``tail`` more follow, so that the window ends before the pipeline drains. ``step`` is the
    number of minibatches that complete together: with replicated stages, updates come in rounds.
    """

    warm_up: int
    length: int
    tail: int
    step: int

    @property
    def minibatches(self) -> int:
        """Of the whole run."""
        return self.warm_up + self.length + self.tail

    @classmethod
    def plan(cls, pipeline: Pipeline, minibatches: int, method: Method) -> Window:
        """Lay a window of at least ``minibatches`` into a run, in whole rounds of updates."""
        together = method.accumulate
        if method.schedule != "1f1b":
            return cls(2 * together, _round_up(minibatches, together), tail=0, step=together)
        rounds = method.minibatches_together(pipeline)
        # A window inside of one update would measure nothing.
        step = rounds if together > 1 or rounds <= minibatches else 1
        flight = max(
            depth * len(replicas)
            for depth, replicas in zip(pipeline.in_flight, pipeline.stages, strict=True)
        )
        tail = flight - step if pipeline.depth > 1 else 0
        return cls(
            warm_up=_round_up(max(flight, 4), step),
            length=_round_up(minibatches, step),
            tail=_round_up(max(tail, 0), step),
            step=step,
        )


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def completion_times(schedule: Schedule, results: Mapping[int, RunResult]) -> list[float]:
    """When each minibatch was complete: all stages had performed the update that contains it."""
    complete = [0.0] * schedule.minibatches
    for worker, actions in schedule.actions.items():
        first = 0
        for action, (_, end) in zip(actions, results[worker].times, strict=True):
            if isinstance(action, Update):
                for minibatch in range(first, action.through):
                    complete[minibatch] = max(complete[minibatch], end)
                first = action.through
    return list(accumulate(complete, max))


def measurement_of(
    schedule: Schedule, results: Mapping[int, RunResult], window: Window
) -> Measurement:
    """The measurement that the window of a run gives."""
    complete = completion_times(schedule, results)
    marks = complete[window.warm_up - 1 : window.warm_up + window.length : window.step]
    begin, end = marks[0], marks[-1]
    steps = [(later - earlier) / window.step for earlier, later in pairwise(marks)]
    return Measurement(
        seconds_per_minibatch=(end - begin) / window.length,
        median_seconds=statistics.median(steps),
        standard_deviation_seconds=statistics.stdev(steps) if len(steps) > 1 else 0.0,
        minibatches=window.length,
        workers=tuple(
            _usage(schedule, worker, results[worker], begin, end)
            for worker in sorted(schedule.actions)
        ),
    )


def _usage(
    schedule: Schedule, worker: int, result: RunResult, begin: float, end: float
) -> WorkerUsage:
    inside: Sequence[tuple[bool, float]] = [
        (
            isinstance(action, Forward | Recompute | Backward | Update),
            min(action_end, end) - max(action_begin, begin),
        )
        for action, (action_begin, action_end) in zip(
            schedule.actions[worker], result.times, strict=True
        )
        if action_end > begin and action_begin < end
    ]
    return WorkerUsage(
        worker=worker,
        stage=schedule.pipeline.stage_of(worker),
        busy_seconds=sum(seconds for computes, seconds in inside if computes),
        waiting_seconds=sum(seconds for computes, seconds in inside if not computes),
        peak_memory_bytes=result.peak_memory_bytes,
        bytes_sent=result.bytes_sent,
    )
