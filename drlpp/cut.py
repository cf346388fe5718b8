"""Cutting a schedule in time, so that training can stop and go on with minibatches in flight.

A cut after minibatch n lies behind the last update that contains only minibatches before n, on
every worker. What was sent before it and would be received behind it is received before it, so
that no message is on its way at the cut::

    stage 0   F0 F1 F2 .. .. B0··· F3 B1···│F4 B2··· F5 B3···
    stage 1      F0 F1 .. B0··· F2 B1··· r3│F3 B2··· F4 B3···       r3: receive for F3
    stage 2         F0 B0··· F1 B1··· r2   │F2 B2··· F3 B3···
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drlpp.schedule import (
    Action,
    AllReduce,
    Backward,
    Forward,
    Message,
    Part,
    Receive,
    Schedule,
    Send,
    Update,
)


@dataclass(frozen=True)
class Segment:
    """What a worker does between two cuts.

    Attributes:
        actions: in order; receives that were drawn before a cut come last.
        version: of the worker's weights at the beginning, counted from the schedule's.
        unfinished: parts whose forward or backward comes in this segment or later.
        in_flight: parts that have made their forward, but not their backward, at its end.
    """

    actions: tuple[Action, ...]
    version: int
    unfinished: frozenset[Part]
    in_flight: frozenset[Part]


def cut_schedule(schedule: Schedule, cuts: Sequence[int] = ()) -> list[dict[int, Segment]]:
    """Cut a schedule after the minibatches before each number in ``cuts``, in rising order.

    Returns:
        For the time before the first cut, between the cuts, and after the last, the segment of
        every worker.
    """
    ends = [_ends(schedule, cut) for cut in cuts]
    ends.append({worker: len(actions) for worker, actions in schedule.actions.items()})
    begins = dict.fromkeys(schedule.actions, 0)
    early: dict[int, set[Action]] = {worker: set() for worker in schedule.actions}
    sent: set[tuple[Message, int]] = set()
    segments = []
    for end in ends:
        for worker, actions in schedule.actions.items():
            inside = actions[begins[worker] : end[worker]]
            sent |= {(a.message, a.to) for a in inside if isinstance(a, Send)}
        segment = {}
        for worker, actions in schedule.actions.items():
            inside = actions[begins[worker] : end[worker]]
            drawn = [
                a
                for a in actions[end[worker] :]
                if isinstance(a, Receive) and (a.message, worker) in sent and a not in early[worker]
            ]
            before, after = actions[: begins[worker]], actions[: end[worker]]
            segment[worker] = Segment(
                actions=(*(a for a in inside if a not in early[worker]), *drawn),
                version=sum(isinstance(a, Update) for a in before),
                unfinished=_passed(actions, Forward) - _passed(before, Backward),
                in_flight=_passed(after, Forward) - _passed(after, Backward),
            )
            early[worker].update(drawn)
        segments.append(segment)
        begins = end
    return segments


def _passed(actions: Sequence[Action], kind: type[Forward | Backward]) -> frozenset[Part]:
    return frozenset((a.minibatch, a.microbatch) for a in actions if isinstance(a, kind))


def _ends(schedule: Schedule, cut: int) -> dict[int, int]:
    """For every worker the number of actions before the cut.

    Where a stage of several replicas lags behind, or runs ahead, the cut moves: whatever is
    received before it is sent before it, and an all-reduce lies before it for all or none.
    """
    senders: dict[tuple[Message, int], tuple[int, int]] = {}
    members: dict[AllReduce, list[tuple[int, int]]] = {}
    for worker, actions in schedule.actions.items():
        for index, action in enumerate(actions):
            if isinstance(action, Send):
                senders[action.message, action.to] = (worker, index)
            elif isinstance(action, AllReduce):
                members.setdefault(action, []).append((worker, index))
    ends = {
        worker: max(
            (i + 1 for i, a in enumerate(actions) if isinstance(a, Update) and a.through <= cut),
            default=0,
        )
        for worker, actions in schedule.actions.items()
    }
    checked = dict.fromkeys(ends, 0)
    while any(checked[worker] < end for worker, end in ends.items()):
        for worker, actions in schedule.actions.items():
            reached = ends[worker]
            for action in actions[checked[worker] : reached]:
                needed: Sequence[tuple[int, int]] = ()
                if isinstance(action, Receive):
                    needed = [senders[action.message, worker]]
                elif isinstance(action, AllReduce):
                    needed = members[action]
                for other, index in needed:
                    ends[other] = max(ends[other], _settled(schedule.actions[other], index))
            checked[worker] = reached
    return ends


def _settled(actions: Sequence[Action], index: int) -> int:
    """The first place behind ``index`` where a worker can stop: nothing is left half done."""
    end = index + 1
    while end < len(actions) and isinstance(actions[end], Send | AllReduce | Update):
        end += 1
    return end


def complete_minibatches(segments: Mapping[int, Segment], schedule: Schedule) -> list[int]:
    """For every worker, in order, how many minibatches its weights contain after a segment."""
    found = []
    for worker in sorted(segments):
        updates = [a for a in schedule.actions[worker] if isinstance(a, Update)]
        made = segments[worker].version + sum(
            isinstance(a, Update) for a in segments[worker].actions
        )
        found.append(updates[made - 1].through if made else 0)
    return found
