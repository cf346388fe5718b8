"""Cutting a schedule in time, so that training can stop and resume with minibatches in flight.

A cut after minibatch n lies behind the last update that contains only minibatches before n, on
every worker. What was sent before it and would be received behind it is received before it, so
that no message is on its way at the cut::

    stage 0   F0 F1 F2 .. .. B0··· F3 B1···│F4 B2··· F5 B3···
    stage 1      F0 F1 .. B0··· F2 B1··· r3│F3 B2··· F4 B3···       r3: receive for F3
    stage 2         F0 B0··· F1 B1··· r2   │F2 B2··· F3 B3···
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drlpp.schedule.actions import (
    Action,
    AllReduce,
    Backward,
    BackwardWeight,
    Forward,
    Message,
    MicrobatchId,
    Pass,
    Receive,
    Send,
    TiedUpdate,
    Update,
)
from drlpp.schedule.schedule import Schedule


@dataclass(frozen=True)
class Segment:
    """What a worker does between two cuts.

    Attributes:
        actions: in order; receives that were drawn before a cut come last.
        version: of the worker's weights at the beginning, counted from the schedule's.
        tied_versions: likewise of its copies of tied weights, by tie.
        in_flight: parts that have made their forward, but not their backward, at its end.
        last: the last part that has made its forward by then; before any, one before the first.
    """

    actions: tuple[Action, ...]
    version: int
    in_flight: frozenset[MicrobatchId]
    last: MicrobatchId
    tied_versions: Mapping[int, int] = field(default_factory=dict)


def cut_schedule(schedule: Schedule, cuts: Sequence[int] = ()) -> list[dict[int, Segment]]:
    """Cut a schedule after the minibatches before each number in ``cuts``, in rising order.

    Returns:
        For the time before the first cut, between the cuts, and after the last, the segment of
        every worker.
    """
    cutter = _Cutter(schedule)
    return [cutter.segment(cut) for cut in (*cuts, None)]


class _Cutter:
    """A walk through a schedule, once, from cut to cut."""

    def __init__(self, schedule: Schedule) -> None:
        self._actions = schedule.actions
        self._begins = dict.fromkeys(schedule.actions, 0)
        self._versions = dict.fromkeys(schedule.actions, 0)
        self._tied_versions: dict[int, dict[int, int]] = {w: {} for w in schedule.actions}
        self._in_flight: dict[int, frozenset[MicrobatchId]] = dict.fromkeys(
            schedule.actions, frozenset()
        )
        self._last: dict[int, MicrobatchId] = dict.fromkeys(schedule.actions, (-1, 0))
        self._drawn: dict[int, set[int]] = {worker: set() for worker in schedule.actions}
        # Where every message is sent and received, and every all-reduce takes place.
        self._sent: dict[tuple[Message, int], tuple[int, int]] = {}
        self._received: dict[tuple[Message, int], int] = {}
        self._members: dict[AllReduce, list[tuple[int, int]]] = {}
        for worker, actions in schedule.actions.items():
            for index, action in enumerate(actions):
                match action:
                    case Send(message, to):
                        self._sent[message, to] = (worker, index)
                    case Receive(message, _):
                        self._received[message, worker] = index
                    case AllReduce():
                        self._members.setdefault(action, []).append((worker, index))

    def segment(self, cut: int | None) -> dict[int, Segment]:
        """Return the segments from the last cut to this one, or to the end."""
        ends = {worker: len(actions) for worker, actions in self._actions.items()}
        if cut is not None:
            ends = self._ends(cut)
        drawn: dict[int, list[int]] = {worker: [] for worker in ends}
        for worker, end in ends.items():
            for action in self._actions[worker][self._begins[worker] : end]:
                if isinstance(action, Send):
                    index = self._received[action.message, action.to]
                    if index >= ends[action.to]:
                        drawn[action.to].append(index)
        segment = {
            worker: self._segment_of(worker, end, sorted(drawn[worker]))
            for worker, end in ends.items()
        }
        self._begins = ends
        return segment

    def _segment_of(self, worker: int, end: int, drawn: Sequence[int]) -> Segment:
        actions, begin = self._actions[worker], self._begins[worker]
        inside = [actions[i] for i in range(begin, end) if i not in self._drawn[worker]]
        forwards = _passed(inside, Forward)
        flight = self._in_flight[worker] | forwards
        self._last[worker] = max({*forwards, self._last[worker]})
        self._in_flight[worker] = flight - _passed(inside, Backward, BackwardWeight)
        version = self._versions[worker]
        self._versions[worker] += sum(isinstance(action, Update) for action in inside)
        tied_versions = dict(self._tied_versions[worker])
        for action in inside:
            if isinstance(action, TiedUpdate):
                self._tied_versions[worker][action.tie] = action.version
        self._drawn[worker].update(drawn)
        return Segment(
            actions=(*inside, *(actions[index] for index in drawn)),
            version=version,
            in_flight=self._in_flight[worker],
            last=self._last[worker],
            tied_versions=tied_versions,
        )

    def _ends(self, cut: int) -> dict[int, int]:
        """Return for every worker the number of actions before the cut.

        Where a stage of several replicas lags behind, or runs ahead, the cut moves: whatever is
        received before it is sent before it, and an all-reduce lies before it for all or none.
        """
        ends = {worker: self._update_before(worker, cut) for worker in self._actions}
        checked = dict(self._begins)
        while any(checked[worker] < end for worker, end in ends.items()):
            for worker, actions in self._actions.items():
                reached = ends[worker]
                for action in actions[checked[worker] : reached]:
                    needed: Sequence[tuple[int, int]] = ()
                    if isinstance(action, Receive):
                        needed = [self._sent[action.message, worker]]
                    elif isinstance(action, AllReduce):
                        needed = self._members[action]
                    for other, index in needed:
                        ends[other] = max(ends[other], _settled(self._actions[other], index))
                checked[worker] = max(checked[worker], reached)
        return ends

    def _update_before(self, worker: int, cut: int) -> int:
        """Return the place behind the last update that contains only minibatches before ``cut``."""
        end = self._begins[worker]
        for index in range(end, len(self._actions[worker])):
            action = self._actions[worker][index]
            if isinstance(action, Update):
                if action.through > cut:
                    break
                end = index + 1
        return end


def _passed(actions: Sequence[Action], *kinds: type[Pass]) -> frozenset[MicrobatchId]:
    return frozenset(a.part for a in actions if isinstance(a, Pass) and isinstance(a, kinds))


def _settled(actions: Sequence[Action], index: int) -> int:
    """Return the first place behind ``index`` where a worker can stop: nothing is half done.

    Messages, all-reduces and the update that follow at once lie before that place. It is no later
    than the first update: a replica without a part continues with the next one at once.
    """
    end = index + 1
    while not isinstance(actions[end - 1], Update) and end < len(actions):
        if not isinstance(actions[end], Send | AllReduce | TiedUpdate | Update):
            break
        end += 1
    return end
