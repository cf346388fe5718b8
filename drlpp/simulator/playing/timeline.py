"""The timeline of a schedule that was played."""

from __future__ import annotations

from itertools import chain

from drlpp.schedule.actions import Backward, Forward, Receive, Send
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import TimedAction
from drlpp.simulator.playing.costs import Costs
from drlpp.simulator.playing.events import Play
from drlpp.simulator.playing.program import ARRIVED


def timeline_of(schedule: Schedule, played: Play, costs: Costs) -> tuple[TimedAction, ...]:
    """Return the actions of a schedule that was played, by start.

    A receive takes no time and stands at the moment when it is done. An all-reduce takes as
    long as a worker waits for it: buckets that travel during a backward are in the backward.
    Weights are predicted at the beginning of a pass.
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
            predictions: tuple[tuple[float, float], ...] = ()
            if isinstance(action, Forward | Backward):
                part = _predicting_part(costs, index, backward=isinstance(action, Backward))
                predictions = ((start, start + part * (now - start)),) if part else ()
            timed.append(TimedAction(worker, action, start, now, predictions))
    return tuple(sorted(timed, key=lambda timed_action: timed_action.start))


def _predicting_part(costs: Costs, index: int, *, backward: bool) -> float:
    """Return the part of a pass that a worker predicts weights in."""
    kind = int(backward)
    predicting = costs.prediction_seconds[index, kind]
    return float(predicting / costs.seconds[index * costs.kinds + kind]) if predicting else 0.0
