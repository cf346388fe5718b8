"""The timeline of a schedule that was played."""

from __future__ import annotations

from itertools import chain

from drlpp.schedule.actions import Receive, Send
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import TimedAction
from drlpp.simulator.playing.events import Play
from drlpp.simulator.playing.program import ARRIVED


def timeline_of(schedule: Schedule, played: Play) -> tuple[TimedAction, ...]:
    """Return the actions of a schedule that was played, by start.

    A receive takes no time and stands at the moment when it is done. An all-reduce takes as
    long as a worker waits for it: buckets that travel during a backward are in the backward.
    """
    timed = []
    for index, worker in enumerate(schedule.pipeline.stages_by_worker):
        steps = list(played.steps_of(index))
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
