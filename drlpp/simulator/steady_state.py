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
from dataclasses import dataclass
from itertools import chain

import numpy

from drlpp.costs.stage_cost import Array
from drlpp.simulator.playing.costs import Costs
from drlpp.simulator.playing.endless import EndlessProgram
from drlpp.simulator.playing.events import Play
from drlpp.simulator.playing.program import Program

MOST_MINIBATCHES = 512
"""Played at most; a period that begins later is not found."""

_MOST_STEPS = 100_000
"""Likewise the steps of all workers."""

_NOT_STEADY = 1 - 1e-9
"""The most that :attr:`SteadyState.steadiness` is where no period was found."""


@dataclass(frozen=True)
class SteadyState:
    """A period, or where none was found the second half of what was played.

    Attributes:
        program: that was played.
        played: when everything happened.
        begin, end: the rounds at whose ends it begins and ends.
        seconds: that it takes.
        steadiness: the seconds of the fastest worker for it over the slowest's: 1 if it is a
            period, less where work still piles up between them.
    """

    program: EndlessProgram
    played: Play
    begin: int
    end: int
    seconds: float
    steadiness: float

    @property
    def warm_up(self) -> int:
        """The minibatches before it."""
        return (self.program.rounds_before + self.begin + 1) * self.program.minibatches

    @property
    def minibatches(self) -> int:
        """The minibatches in it."""
        return (self.end - self.begin) * self.program.minibatches

    @property
    def minibatches_played(self) -> int:
        """How many the worker that got least far has updated its weights with."""
        program = self.program
        rounds = min(
            (len(done) - len(before)) // len(steps)
            for done, before, steps in zip(
                self.played.ends, program.before.steps, program.rounds.steps, strict=True
            )
        )
        return (program.rounds_before + rounds) * program.minibatches

    @property
    def exact(self) -> bool:
        """Whether it is a period."""
        return self.steadiness == 1.0

    def completions(self, step: int) -> list[float]:
        """Return when minibatches were complete: at its begin, and after every ``step``."""
        program = self.program
        before = program.rounds_before * program.minibatches
        steps_of = [
            {through: step for step, through in updates} for updates in program.before.updates
        ]
        found = []
        for through in range(self.warm_up, self.warm_up + self.minibatches + 1, step):
            turn, place = divmod(through - before - 1, program.minibatches)
            found.append(
                max(
                    done[step_of[before + place + 1] + turn * len(steps)]
                    for done, step_of, steps in zip(
                        self.played.ends, steps_of, program.rounds.steps, strict=True
                    )
                )
            )
        return found

    def computing_seconds(self, worker: int) -> float:
        """Return what a worker, by its index, computes in it."""
        program, rounds = self.program, self.program.rounds
        done, steps = self.played.ends[worker], rounds.steps[worker]
        number = len(program.before.steps[worker]) + (self.begin + 1) * len(steps)
        seconds = 0.0
        for turn in range(self.begin + 1, self.end + 1):
            for waits, kind, _, _ in steps:
                if kind >= 0:
                    begin = done[number - 1] if number else 0.0
                    for message in waits:
                        begin = max(begin, self.played.arrivals[message + turn * rounds.messages])
                    seconds += done[number] - begin
                number += 1
        return seconds


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
    played = Play(program.before, costs, program.rounds)
    steps = sum(map(len, program.rounds.steps))
    most = min(MOST_MINIBATCHES // program.minibatches, _MOST_STEPS // steps)
    rounds = program.rounds_in_flight + 2
    most_ahead = max(2 * most, _AHEAD * rounds)
    while True:
        played.play(rounds)
        rows = _Rows.of(program, rounds, played)
        found = _period(rows)
        if found is not None:
            return SteadyState(program, played, *found, steadiness=1.0)
        if rounds >= most_ahead and rows.complete < 2:
            # Somebody is so far ahead that the others have hardly begun.
            played.play(rounds, to_the_end=True)
            rows = _Rows.of(program, rounds, played)
        last = rounds >= most and rows.complete > 1
        if last or (enough is not None and rows.complete > _FEWEST_ROUNDS):
            begin, end = (rows.complete - 1) // 2, rows.complete - 1
            paces = rows.ends[end] - rows.ends[begin]
            least = (end - begin) * _least_seconds(program, costs)
            fastest, seconds = float(paces.min()), max(float(paces.max()), least)
            rounds_long = end - begin
            minibatches = rounds_long * program.minibatches
            least_pace = fastest / minibatches * (1 - 1 / rounds_long)
            if last or (enough and enough(least_pace, seconds / minibatches)):
                steadiness = min(fastest / seconds, _NOT_STEADY) if seconds else 1.0
                return SteadyState(program, played, begin, end, seconds, steadiness)
        rounds += max(2, rounds // 2)


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
    def of(cls, program: EndlessProgram, rounds: int, played: Play) -> _Rows:
        parts: list[Array] = []
        ends = []
        for done, before, steps in zip(
            played.ends, program.before.steps, program.rounds.steps, strict=True
        ):
            found = numpy.full(rounds * len(steps), numpy.inf)
            found[: max(len(done) - len(before), 0)] = done[len(before) :]
            parts.append(found.reshape(rounds, len(steps)))
            ends.append(parts[-1][:, -1])
        if each := program.rounds.messages:
            first = program.first_message
            arrivals = numpy.array(played.arrivals[first : first + rounds * each])
            arrivals[arrivals < 0] = numpy.inf
            parts.append(arrivals.reshape(rounds, each))
        times = numpy.hstack(parts)
        begun = times.max(axis=1)
        complete = int(numpy.searchsorted(begun, numpy.inf))
        return cls(times, numpy.column_stack(ends), begun, complete)


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
    held = [0.0] * costs.ports
    for path, messages in zip(costs.paths, program.route_messages, strict=True):
        for port, seconds in path.hops:
            held[port] += messages * seconds
    for summed in program.rounds.all_reduces:
        for ring in costs.rings_of(summed):
            for port, seconds in chain(*ring.links):
                held[port] += seconds
    return max([0.0, *held])
