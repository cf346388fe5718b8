"""Where the time of every worker goes: a timeline as spans without gaps, each of one kind.

The kinds, their order and their colours are defined here, for pictures, traces and tables alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from drlpp.schedule.schedule import (
    AllReduce,
    Backward,
    Forward,
    Receive,
    Recompute,
    Send,
    Update,
)
from drlpp.timeline.timeline import TimedAction


@dataclass(frozen=True, slots=True)
class Kind:
    """What a worker does.

    Attributes:
        label: for readers.
        colour: in pictures and tables.
        trace_colour: the name of a similar colour in Chrome's trace viewer, which has no other.
        computes: whether it counts as work; the rest of a worker's time is its bubble.
    """

    label: str
    colour: str
    trace_colour: str
    computes: bool


# Okabe and Ito's palette, which colour-blind readers can tell apart.
FORWARD = Kind("forward", "#56B4E9", "thread_state_runnable", computes=True)
RECOMPUTE = Kind("recompute", "#0072B2", "rail_response", computes=True)
BACKWARD = Kind("backward", "#E69F00", "rail_idle", computes=True)
PREDICTION = Kind("prediction", "#F0E442", "startup", computes=True)
UPDATE = Kind("update", "#009E73", "rail_load", computes=True)
ALL_REDUCE = Kind("all-reduce", "#CC79A7", "thread_state_uninterruptible", computes=False)
SENDING = Kind("sending", "#D55E00", "heap_dump_child_node_arrow", computes=False)
WAITING = Kind("waiting", "#DDDDDD", "grey", computes=False)

KINDS = (FORWARD, RECOMPUTE, BACKWARD, PREDICTION, UPDATE, ALL_REDUCE, SENDING, WAITING)
"""All kinds, in the order of legends and columns."""

_PASSES = Forward | Recompute | Backward
_KIND_OF: dict[type, Kind] = {
    Forward: FORWARD,
    Recompute: RECOMPUTE,
    Backward: BACKWARD,
    Update: UPDATE,
    AllReduce: ALL_REDUCE,
    Send: SENDING,
}


@dataclass(frozen=True, slots=True)
class Span:
    """``worker`` does one kind of thing from ``start`` to ``end`` (seconds).

    ``number`` is that of a pass, ``minibatch`` or, with microbatches, ``minibatch.microbatch``.
    """

    worker: int
    kind: Kind
    start: float
    end: float
    number: str = ""

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end - self.start


def spans_of(timeline: Iterable[TimedAction]) -> tuple[Span, ...]:
    """The spans of a timeline, by worker and start; those of a worker follow each other at once.

    All workers' spans reach from the first start to the last end. What is between a worker's
    actions is waiting, and so are its receives. Actions that take no time have no span.
    """
    of_worker: dict[int, list[TimedAction]] = defaultdict(list)
    has_microbatches = False
    for timed in timeline:
        of_worker[timed.worker].append(timed)
        has_microbatches |= isinstance(timed.action, _PASSES) and timed.action.microbatch > 0
    begin = min((actions[0].start for actions in of_worker.values()), default=0.0)
    end = max((timed.end for actions in of_worker.values() for timed in actions), default=0.0)
    return tuple(
        span
        for worker in sorted(of_worker)
        for span in _of_worker(of_worker[worker], begin, end, has_microbatches)
    )


def _of_worker(
    actions: Sequence[TimedAction], begin: float, end: float, has_microbatches: bool
) -> Iterator[Span]:
    worker, now = actions[0].worker, begin
    for timed in actions:
        if isinstance(timed.action, Receive) or timed.end <= timed.start:
            continue
        if timed.start > now:
            yield Span(worker, WAITING, now, timed.start)
        yield from _of_action(timed, has_microbatches)
        now = timed.end
    if end > now:
        yield Span(worker, WAITING, now, end)


def _of_action(timed: TimedAction, has_microbatches: bool) -> Iterator[Span]:
    """Its predictions, and what is between them."""
    kind, number = _KIND_OF[type(timed.action)], ""
    if isinstance(timed.action, _PASSES):
        number = str(timed.action.minibatch)
        if has_microbatches:
            number += f".{timed.action.microbatch}"
    now = timed.start
    for start, end in timed.predictions:
        if start > now:
            yield Span(timed.worker, kind, now, start, number)
        yield Span(timed.worker, PREDICTION, start, end, number)
        now = end
    if timed.end > now:
        yield Span(timed.worker, kind, now, timed.end, number)


@dataclass(frozen=True)
class TimeUse:
    """What a worker did in a stretch of time: ``seconds`` of every kind, which add up to it."""

    worker: int
    seconds: Mapping[Kind, float]

    def share(self, kind: Kind) -> float:
        """The part of the time, between 0 and 1."""
        return self.seconds[kind] / (sum(self.seconds.values()) or 1.0)

    @property
    def utilisation(self) -> float:
        """The part of the time that the worker computes."""
        return sum(self.share(kind) for kind in KINDS if kind.computes)

    @property
    def bubble(self) -> float:
        """The rest."""
        return sum(self.share(kind) for kind in KINDS if not kind.computes)


def time_use(spans: Iterable[Span], begin: float, end: float) -> tuple[TimeUse, ...]:
    """What every worker did from ``begin`` to ``end``, by worker."""
    seconds: dict[int, dict[Kind, float]] = {}
    for span in spans:
        mine = seconds.setdefault(span.worker, dict.fromkeys(KINDS, 0.0))
        mine[span.kind] += max(0.0, min(span.end, end) - max(span.start, begin))
    return tuple(TimeUse(worker, seconds[worker]) for worker in sorted(seconds))
