"""The steady state of a schedule that never ends: after how many rounds it repeats itself in time.

What the workers do in a round depends on when they did what in the rounds before, and on nothing
older than the work that is on its way. So once a few rounds in a row have taken place exactly as a
few before them, only later, they will for ever: the time between is a *period*, and the seconds per
minibatch over it are exact, however long one would play.

A few are enough if a moment can be found at which every worker is in one of them, and all messages
of older ones have arrived. Times are sums without rounding
(:mod:`drlpp.simulator.playing.costs`), so equal means equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy

from drlpp.costs.stage_cost import Array
from drlpp.schedule.analysis.window import Window
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator.playing.costs import Costs, Pricing
from drlpp.simulator.playing.endless import EndlessProgram
from drlpp.simulator.playing.events import Play, play
from drlpp.simulator.playing.one_f_one_b import program_of
from drlpp.simulator.playing.program import Program

MOST_MINIBATCHES = 512
"""Played at most; a period that begins later is not found."""

_MOST_STEPS = 100_000
"""Likewise the steps of all workers."""

_NOT_STEADY = 1 - 1e-9
"""The most that :attr:`SteadyState.steadiness` is where no period was found."""


@dataclass(frozen=True)
class SteadyState:
    """A period, or where none was found the second half of what was played, or a window of a run.

    Attributes:
        program: that was played, or its beginning.
        played: when everything happened.
        until: for a number of minibatches the step of every worker that completes them.
        warm_up: the minibatches before it.
        minibatches: in it.
        seconds: that it takes.
        steadiness: the seconds of the fastest worker for it over the slowest's: 1 if it is a
            period, less where work still piles up between them.
    """

    program: Program
    played: Play
    until: Callable[[int], list[int]]
    warm_up: int
    minibatches: int
    seconds: float
    steadiness: float

    def window(self, pipeline: Pipeline, method: Method, least: int) -> Window:
        """Return a window of whole periods, of at least so many minibatches."""
        window = Window.plan(pipeline, least, method)
        return replace(
            window,
            # Nobody runs out of minibatches before it ends, however far ahead.
            tail=window.tail + method.minibatches_in_flight(pipeline),
            warm_up=self.warm_up,
            length=-(-least // self.minibatches) * self.minibatches,
            step=method.accumulate if method.flushes else method.minibatches_together(pipeline),
        )

    def completions(self, step: int) -> list[float]:
        """Return when minibatches were complete: at its begin, and after every ``step``."""
        through = range(self.warm_up, self.warm_up + self.minibatches + 1, step)
        return [max(self.played.ends_of(self.until(one))) for one in through]

    def busy_seconds(self, worker: int, minibatches: int) -> float:
        """Return what a worker, by its index, computes for so many minibatches."""
        first, last = (
            self.until(self.warm_up + number)[worker] + 1 for number in (0, self.minibatches)
        )
        busy = 0.0
        for step in islice(self.played.steps_of(worker), first, last):
            if step.kind >= 0:
                busy += step.end - step.begin
        return busy * minibatches / self.minibatches


def run_of(pipeline: Pipeline, method: Method, window: Window, pricing: Pricing) -> SteadyState:
    """Play a run as live workers make it, which begins and ends empty: its window."""
    program = _program_of(pipeline.numbered, method, window.minibatches)
    played = play(program, pricing.of(program))
    first, last = (
        played.ends_of(program.until(window.warm_up + number)) for number in (0, window.length)
    )
    seconds = [end - begin for begin, end in zip(first, last, strict=True)]
    slowest = max(seconds)
    return SteadyState(
        program=program,
        played=played,
        until=program.until,
        warm_up=window.warm_up,
        minibatches=window.length,
        seconds=slowest,
        steadiness=min(seconds) / slowest if slowest else 1.0,
    )


_program_of = lru_cache(maxsize=8)(program_of)
"""A search comes back to long programs of one shape."""


Enough = Callable[[float, float], bool]
"""Whether one need not play on, from two estimates of the seconds per minibatch.

They are what it takes the fastest worker, less a round since updates may come in bursts, and what
it takes the slowest.
"""

_FEWEST_ROUNDS = 8
"""Played before anyone is asked whether they are enough."""

_AHEAD = 4
"""So many times the rounds on their way, and twice the most that are played, nobody is ahead by
what is in flight alone."""


def find_steady_state(
    program: EndlessProgram,
    costs_of: Callable[[Program], Costs],
    enough: Enough | None = None,
) -> SteadyState:
    """Play more and more rounds until one period is found.

    There may be none within :data:`MOST_MINIBATCHES`: messages that meet at a port may take turns
    for long, and a worker that gets no gradients back may get further and further ahead. Then the
    second half of what was played counts, at the pace of the slowest worker, but no faster than
    ports can be. So it does when ``enough`` says so, which is asked from time to time.
    """
    costs = costs_of(program.before)
    played = Play(program.before, costs, program)
    steps = len(program.rounds.kinds)
    most = min(MOST_MINIBATCHES // program.minibatches, _MOST_STEPS // steps)
    rounds = program.rounds_in_flight + 2
    most_ahead = max(2 * most, _AHEAD * rounds)
    least_seconds = _least_seconds(program, costs)
    while True:
        played.play(rounds)
        rows = _Rows.of(program, played)
        found = _period(rows)
        if found is not None:
            return _from(program, played, *found, steadiness=1.0)
        if rounds >= most_ahead and rows.complete < 2:
            # Somebody is so far ahead that the others have hardly begun.
            played.play(rounds, to_the_end=True)
            rows = _Rows.of(program, played)
        last = rounds >= most and rows.complete > 1
        if last or (enough is not None and rows.complete > _FEWEST_ROUNDS):
            begin, end = (rows.complete - 1) // 2, rows.complete - 1
            paces = rows.ends[end] - rows.ends[begin]
            least = (end - begin) * least_seconds
            fastest, seconds = float(paces.min()), max(float(paces.max()), least)
            rounds_long = end - begin
            minibatches = rounds_long * program.minibatches
            least_pace = fastest / minibatches * (1 - 1 / rounds_long)
            if last or (enough and enough(least_pace, seconds / minibatches)):
                steadiness = min(fastest / seconds, _NOT_STEADY) if seconds else 1.0
                return _from(program, played, begin, end, seconds, steadiness)
        rounds += max(2, rounds // 2)


def _from(
    program: EndlessProgram, played: Play, begin: int, end: int, seconds: float, steadiness: float
) -> SteadyState:
    """Return what lies between the ends of two rounds."""
    warm_up = (program.rounds_before + begin + 1) * program.minibatches
    minibatches = (end - begin) * program.minibatches
    return SteadyState(
        program.before, played, program.until, warm_up, minibatches, seconds, steadiness
    )


@dataclass(frozen=True)
class _Rows:
    """What happened when, a row for every round that repeats; infinite is not yet.

    Attributes:
        times: when every step ended and every message arrived.
        ends: when every worker ended the round.
        begun: when all had ended it, and its messages and those of older rounds had arrived.
        complete: how many rounds have all of their times.
    """

    times: Array
    ends: Array
    begun: Array
    complete: int

    @classmethod
    def of(cls, program: EndlessProgram, played: Play) -> _Rows:
        ends, arrivals = played.rows()
        times = numpy.hstack([ends, arrivals])
        begun = times.max(axis=1)
        complete = int(numpy.searchsorted(begun, numpy.inf))
        return cls(times, ends[:, numpy.cumsum(program.rounds.counts) - 1], begun, complete)


def _period(rows: _Rows) -> tuple[int, int, float] | None:
    """Look for the shortest period at the end of what was played.

    Returns:
        The rounds at whose ends it begins and ends, and its seconds.
    """
    newest = rows.complete - 1
    if newest < 2:
        return None
    times = rows.times
    # The last round that all had ended, its messages too, before anyone ended the newest.
    oldest = int(numpy.searchsorted(rows.begun[:newest], rows.ends[newest].min(), "right")) - 1
    if oldest < 1:
        return None
    alike = numpy.ptp(times[newest] - times[newest - oldest : newest], axis=1) == 0
    later = times[oldest : newest + 1]
    for period in (oldest - numpy.flatnonzero(alike)[::-1]).tolist():
        shift = later - times[oldest - period : newest + 1 - period]
        if numpy.ptp(shift) == 0:
            return oldest - period, oldest, float(shift[-1].max())
    return None


def _least_seconds(program: EndlessProgram, costs: Costs) -> float:
    """Return what a round takes of the busiest port."""
    held = numpy.zeros(costs.ports)
    messages = numpy.bincount(program.rounds.sends, minlength=len(program.before.routes))
    messages = numpy.repeat(messages, numpy.diff(costs.hop_begins))
    numpy.add.at(held, costs.hop_ports, messages * costs.hop_seconds)
    kinds = len(costs.bucket_begins) - 1
    sums = numpy.bincount(program.tables.sum_kinds, minlength=kinds)
    sums = numpy.repeat(sums, numpy.diff(costs.bucket_begins))
    sums = numpy.repeat(sums, numpy.diff(costs.ring_begins))
    numpy.add.at(held, costs.ring_ports, sums * costs.ring_seconds)
    return float(held.max(initial=0.0))
