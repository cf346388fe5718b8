"""When every action of a schedule happens, and where the time of every worker goes.

A timeline is played, simulated or recorded; as spans it has no gaps, and each span is of one kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from drlpp.schedule.actions import (
    WAITING,
    Action,
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Message,
    Pass,
    Receive,
    Recompute,
    Send,
    SpanKind,
    Update,
)
from drlpp.schedule.schedule import Schedule, in_order

KINDS = (
    *(kind.span for kind in (Forward, Recompute, Backward, BackwardInput, BackwardWeight)),
    *(kind.span for kind in (Update, AllReduce, Send)),
    WAITING,
)
"""All kinds, in the order of legends and columns."""


@dataclass(frozen=True, slots=True)
class TimedAction:
    """``worker`` performs ``action`` from ``start`` to ``end`` (seconds since the schedule began).

    Waiting belongs to no action: it is the gap between two actions of a worker.
    """

    worker: int
    action: Action
    start: float
    end: float


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


@dataclass(frozen=True, slots=True)
class Span:
    """``worker`` does one kind of thing from ``start`` to ``end`` (seconds).

    ``number`` is that of a pass, ``minibatch`` or, with microbatches, ``minibatch.microbatch``.
    """

    worker: int
    kind: SpanKind
    start: float
    end: float
    number: str = ""

    @property
    def seconds(self) -> float:
        """The seconds that it takes."""
        return self.end - self.start


def row_name(stages: Sequence[int]) -> str:
    """Return what a worker's row is called by the stages that it holds."""
    return f"stage{'s' * (len(stages) > 1)} {' and '.join(map(str, stages))}"


def spans_of(timeline: Iterable[TimedAction]) -> tuple[Span, ...]:
    """Return the spans of a timeline by worker and start; a worker's have no gaps between them.

    All workers' spans reach from the first start to the last end. What is between a worker's
    actions is waiting, and so are its receives. Actions that take no time have no span.
    """
    of_worker: dict[int, list[TimedAction]] = defaultdict(list)
    has_microbatches = False
    for timed in timeline:
        of_worker[timed.worker].append(timed)
        has_microbatches |= isinstance(timed.action, Pass) and timed.action.microbatch > 0
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
        if timed.action.span is WAITING or timed.end <= timed.start:
            continue
        if timed.start > now:
            yield Span(worker, WAITING, now, timed.start)
        number = ""
        if isinstance(timed.action, Pass):
            number = str(timed.action.minibatch)
            if has_microbatches:
                number += f".{timed.action.microbatch}"
        yield Span(worker, timed.action.span, timed.start, timed.end, number)
        now = timed.end
    if end > now:
        yield Span(worker, WAITING, now, end)


@dataclass(frozen=True)
class TimeUse:
    """What a worker did in a stretch of time: ``seconds`` of every kind, which add up to it."""

    worker: int
    seconds: Mapping[SpanKind, float]

    def share(self, kind: SpanKind) -> float:
        """Return the part of the time that ``kind`` takes, between 0 and 1."""
        return self.seconds[kind] / (sum(self.seconds.values()) or 1.0)

    @property
    def utilisation(self) -> float:
        """The part of the time that the worker computes."""
        return sum(self.share(kind) for kind in KINDS if kind.computes)

    @property
    def bubble(self) -> float:
        """The part of the time that the worker does not compute."""
        return sum(self.share(kind) for kind in KINDS if not kind.computes)


def time_use(spans: Iterable[Span], begin: float, end: float) -> tuple[TimeUse, ...]:
    """Return what every worker did from ``begin`` to ``end``, by worker."""
    seconds: dict[int, dict[SpanKind, float]] = {}
    for span in spans:
        mine = seconds.setdefault(span.worker, dict.fromkeys(KINDS, 0.0))
        mine[span.kind] += max(0.0, min(span.end, end) - max(span.start, begin))
    return tuple(TimeUse(worker, seconds[worker]) for worker in sorted(seconds))
