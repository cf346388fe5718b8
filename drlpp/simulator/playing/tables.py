"""Programs and plays as the event loop has them: where every step, message and sum stands.

What repeats in every round has a column of its own, and each round is a row::

    step p of a round, in its t-th turn       row t of the ends
    message n of a route, e of them a round   row ⌊n / e⌋ of the arrivals, from some round on
    sum n of a kind                           likewise

So a step says once at which message it waits, and in the next round it is as many places later as
a row has columns. The messages before the first round fill rows above that of the first; what does
not repeat is one row.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy

from drlpp.costs.placed_stages import Flags
from drlpp.costs.stage_cost import Array, Indices
from drlpp.simulator.playing.program import Program, Steps, begins_of


class Tables(NamedTuple):
    """A program, and a round that repeats behind it.

    Attributes:
        begins: the first step of every worker, then where the last one's end.
        round_begins: likewise of a round; empty if none repeats.
        kinds: of the steps.
        wait_begins, waits: of every step the first of the messages it waits for, and these.
        send_begins, sends, routes: likewise what it sends, and on which routes.
        sums: of every step the sum that it is part of, if any.
        receivers: of each route.
        sum_kinds: the kind of every column of sums.
        members: how many workers make a sum of each kind.
        steps, messages, sums_of_round: the columns of a round.
        message_rows, sum_rows: above those of the first round.
    """

    begins: Indices
    round_begins: Indices
    kinds: Indices
    wait_begins: Indices
    waits: Indices
    send_begins: Indices
    sends: Indices
    routes: Indices
    sums: Indices
    receivers: Indices
    sum_kinds: Indices
    members: Indices
    steps: int
    messages: int
    sums_of_round: int
    message_rows: int
    sum_rows: int

    @classmethod
    def of(cls, program: Program, rounds: Steps | None = None) -> Self:
        """Lay out a program, and the round that repeats if there is one."""
        blocks = [program.steps] if rounds is None else [program.steps, rounds]
        kinds, sums, waiting, sending, waits, sends, workers = (
            numpy.concatenate([getattr(block, name) for block in blocks])
            for name in ("kinds", "sums", "waiting", "sending", "waits", "sends", "workers")
        )
        before = len(program.steps.kinds)
        messages = _Grid.of(
            *_counts(sends, 0 if rounds is None else len(program.steps.sends), len(program.routes))
        )
        # Of the sums of each kind that a worker has come by, the next one is a step's.
        partial = numpy.flatnonzero(sums >= 0)
        of_kind, awaited = sums[partial], kinds[partial] < 0
        keys = workers[partial] * len(program.sums) + of_kind
        made = _counts(
            keys[awaited],
            0 if rounds is None else int((awaited & (partial < before)).sum()),
            len(program.steps.counts) * len(program.sums),
        )
        grid = _Grid.of(
            *(n.reshape(len(program.steps.counts), len(program.sums)).max(axis=0) for n in made)
        )
        sums[partial] = grid.places(of_kind, _earlier(keys, awaited))
        return cls(
            begins=begins_of(program.steps.counts),
            round_begins=before + begins_of(rounds.counts)
            if rounds is not None
            else numpy.empty(0, dtype=int),
            kinds=kinds,
            wait_begins=begins_of(waiting),
            waits=messages.places(waits, _earlier(waits, numpy.ones(len(waits), dtype=bool))),
            send_begins=begins_of(sending),
            sends=messages.places(sends, _earlier(sends, numpy.ones(len(sends), dtype=bool))),
            routes=sends,
            sums=sums,
            receivers=program.routes.receivers,
            sum_kinds=numpy.repeat(numpy.arange(len(program.sums)), grid.columns),
            members=numpy.array([one.members for one in program.sums], dtype=int),
            steps=len(kinds) - before,
            messages=int(messages.columns.sum()),
            sums_of_round=int(grid.columns.sum()),
            message_rows=messages.rows,
            sum_rows=grid.rows,
        )


class _Grid(NamedTuple):
    """Rows of what comes one after the other, in each round so many of a group."""

    before: Indices
    columns: Indices
    rows: int

    @classmethod
    def of(cls, before: Indices, each: Indices) -> Self:
        columns = numpy.maximum(each, 1)
        return cls(before, columns, int((-(-before // columns)).max(initial=0)))

    def places(self, groups: Indices, numbers: Indices) -> Indices:
        """Return where the n-th of groups stand, row by row."""
        rows, columns = numpy.divmod(numbers - self.before[groups], self.columns[groups])
        firsts = begins_of(self.columns)
        return (self.rows + rows) * firsts[-1] + firsts[groups] + columns


def _counts(groups: Indices, first: int, count: int) -> tuple[Indices, Indices]:
    """Return how many of each group there are before a place, and from there on."""
    return (
        numpy.bincount(groups[:first], minlength=count),
        numpy.bincount(groups[first:], minlength=count),
    )


def _earlier(groups: Indices, counted: Flags) -> Indices:
    """Return for each how many that count of its group come before it."""
    # Small numbers are sorted much faster.
    small = groups.astype(numpy.min_scalar_type(groups.max(initial=0)))
    order = numpy.argsort(small, kind="stable")
    ranked, counts = groups[order], counted[order]
    earlier: Indices = numpy.cumsum(counts) - counts
    begins = numpy.flatnonzero(numpy.diff(ranked, prepend=-1))
    found = numpy.empty(len(groups), dtype=int)
    lengths = numpy.diff(begins, append=len(groups))
    found[order] = earlier - numpy.repeat(earlier[begins], lengths)
    return found


_NO_SECONDS, _NO_NUMBERS = numpy.empty(0), numpy.empty(0, dtype=int)


class State(NamedTuple):
    """How far a play has come.

    Attributes:
        position, turn, clock: of every worker its next step, how often it has begun the round
            again, −1 before the first, and its time.
        lacking: the message that it waits for, or why it waits for none.
        next_waiting: the worker that began to wait for the same sum before it, or −1.
        free: from when every port is.
        ends, arrivals: of steps and messages.
        bucket, sum_end, on_its_way, waiting: of every sum the bucket that comes next, the end of
            the one before, whether one is passing ports, and the worker that waits last.
        missing, ready: of every bucket how many workers have yet to give it, and when the last so
            far has it.
        seconds, events, left: of what is to come.
    """

    position: Indices
    turn: Indices
    clock: Array
    lacking: Indices
    next_waiting: Indices
    free: Array
    ends: Array
    arrivals: Array = _NO_SECONDS
    bucket: Indices = _NO_NUMBERS
    sum_end: Array = _NO_SECONDS
    on_its_way: Indices = _NO_NUMBERS
    waiting: Indices = _NO_NUMBERS
    missing: Indices = _NO_NUMBERS
    ready: Array = _NO_SECONDS
    seconds: Array = _NO_SECONDS
    events: Indices = _NO_NUMBERS
    left: Array = _NO_SECONDS
