"""The timeline of a run, as its actions really took place."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import itemgetter

from drlpp.runtime.ipc.protocol import RunResult
from drlpp.schedule.actions import Update
from drlpp.schedule.schedule import Schedule
from drlpp.timeline.timeline import TimedAction


def timeline_of(schedule: Schedule, results: Mapping[int, RunResult]) -> tuple[TimedAction, ...]:
    """Return all actions of a run as it was performed, in seconds since its first began."""
    start = min((begin for result in results.values() for begin, _ in result.times[:1]), default=0)
    return tuple(
        TimedAction(
            worker,
            action,
            begin - start,
            end - start,
            tuple(
                (first - start, last - start) for first, last in _within(begin, end, predictions)
            ),
        )
        for worker, actions in schedule.actions.items()
        for predictions in [results[worker].predictions]
        for action, (begin, end) in zip(actions, results[worker].times, strict=True)
    )


def _within(
    begin: float, end: float, ordered: Sequence[tuple[float, float]]
) -> Sequence[tuple[float, float]]:
    first, last = (bisect_left(ordered, moment, key=itemgetter(0)) for moment in (begin, end))
    return ordered[first:last]


def middle_of(timeline: Sequence[TimedAction], minibatches: int) -> tuple[TimedAction, ...]:
    """Return the actions of a few minibatches from the middle of a run."""
    updates = [timed for timed in timeline if isinstance(timed.action, Update)]
    if not updates:
        return ()
    whole = max(timed.end for timed in updates)
    span = whole * minibatches / len({timed.action for timed in updates})
    begin, end = (whole - span) / 2, (whole + span) / 2
    return tuple(timed for timed in timeline if timed.start >= begin and timed.end <= end)
