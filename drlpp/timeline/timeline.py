"""When every action of a schedule happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drlpp.schedule.schedule import (
    Action,
    AllReduce,
    Message,
    Receive,
    Schedule,
    Send,
    in_order,
)


@dataclass(frozen=True, slots=True)
class TimedAction:
    """``worker`` performs ``action`` from ``start`` to ``end`` (seconds since the schedule began).

    Waiting belongs to no action: it is the gap between two actions of a worker. ``predictions`` are
    the parts of a pass, begin and end, in which weights are moved to those that it uses, or back.
    """

    worker: int
    action: Action
    start: float
    end: float
    predictions: tuple[tuple[float, float], ...] = ()


def play(schedule: Schedule, seconds_of: Callable[[int, Action], float]) -> tuple[TimedAction, ...]:
    """Play a schedule: every worker performs its list in order, as early as it can.

    A send takes its worker no time. A receive is done as soon as the message has arrived, which
    is ``seconds_of`` the receive after its send; messages on one link do not hold each other up.
    An all-reduce begins when the last of its workers has reached it.

    Args:
        schedule: what to play.
        seconds_of: ``seconds_of(worker, action)``, the seconds that an action takes: computing
            for a forward, backward or update, the transfer for a receive, the collective for an
            all-reduce. It is not asked about sends.

    Returns:
        All actions by start; actions of one worker keep their order.
    """
    clock = dict.fromkeys(schedule.actions, 0.0)
    sent: dict[tuple[Message, int], float] = {}
    reduced: dict[AllReduce, tuple[float, float]] = {}
    timed = []
    for worker, action in in_order(schedule):
        start = clock[worker]
        match action:
            case Send(message, to):
                sent[message, to] = end = start
            case Receive(message, _):
                start = end = max(start, sent[message, worker] + seconds_of(worker, action))
            case AllReduce():
                if action not in reduced:
                    start = max(clock[member] for member in action.workers)
                    reduced[action] = (start, start + seconds_of(worker, action))
                start, end = reduced[action]
            case _:
                end = start + seconds_of(worker, action)
        clock[worker] = end
        timed.append(TimedAction(worker, action, start, end))
    return tuple(sorted(timed, key=lambda timed_action: timed_action.start))
