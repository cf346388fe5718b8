"""The event loop: when every step of a program ends.

Only ports are shared, and need an order in time. So a worker is played on, step after step, until
it lacks a message, and just its sends become events; the earliest event is next. What a worker does
later comes from messages that arrive later, so no event is ever overtaken.

Ties go to sums, whose last bucket is ready before its backward sends anything, then to the route
that comes first in the program, then to the older message, so that it is always played alike, in
every round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

from drlpp.simulator.playing.costs import Costs
from drlpp.simulator.playing.program import (
    FINISH_SUM,
    ROUTE_BITS,
    SUMMED_BACKWARD,
    Program,
    Rounds,
)
from drlpp.simulator.playing.sums import Next, Sums

_MESSAGE = (1 << ROUTE_BITS) - 1

_A_BUCKET = -1
"""Comes before all routes where an event is a number above these bits."""


@dataclass(frozen=True, slots=True)
class Played:
    """Seconds since the start: the end of every worker's steps, the arrival of every message."""

    ends: list[list[float]]
    arrivals: list[float]


def play(program: Program, costs: Costs) -> Played:
    """Play all steps.

    Raises:
        RuntimeError: if the workers would wait for each other for ever.
    """
    found = Play(program, costs)
    found.play()
    if any(len(done) < len(steps) for done, steps in zip(found.ends, program.steps, strict=True)):
        raise RuntimeError("the schedule cannot proceed; its workers wait for each other")
    return Played(found.ends, found.arrivals)


class Play:
    """Plays a program, and then rounds that repeat, as many as one likes.

    Once a worker has done all rounds that it may, nothing is played that comes after that moment:
    the worker could have a say in it. So it can always be continued, and what has been played
    stays as it is.

    Args:
        program: what is played first.
        costs: of all steps.
        rounds: what follows it, again and again.

    Attributes:
        ends: of every worker's steps so far.
        arrivals: of messages, below 0 if they have not arrived.
    """

    def __init__(self, program: Program, costs: Costs, rounds: Rounds | None = None) -> None:
        workers, messages = len(program.steps), len(program.route_of)
        self._costs = costs
        self._rounds = rounds
        self._sums = Sums(costs)
        self._sums.add(program.all_reduces)
        self.ends: list[list[float]] = [[] for _ in range(workers)]
        self.arrivals = [-1.0] * messages
        self._leaving = [0.0] * messages
        self._free = [0.0] * costs.ports
        # (seconds, number, hop). By number, above its lower bits: a sum, whose next bucket begins;
        # then the route of a message, with the hop it has come to.
        self._events: list[tuple[float, int, int]] = []
        self._runnable = list(range(workers - 1, -1, -1))
        # Where every worker is: at which of its present steps, how often it has repeated them, and
        # which message it lacks.
        self._steps = list(program.steps)
        self._position = [0] * workers
        self._turn = [-1] * workers
        self._clock = [0.0] * workers
        self._lacking = [-1] * workers
        self._stopped: list[int] = []
        self._allowed = 0

    def play(self, rounds: int = 0, *, to_the_end: bool = False) -> None:
        """Play on until every worker has done so many rounds, or may not go on.

        Args:
            rounds: since the beginning.
            to_the_end: let all workers do them, though who is ahead has stopped by then, and could
                have had a say in when the others' messages pass. It cannot be continued.
        """
        costs, sums = self._costs, self._sums
        paths, ends, clock, lacking = costs.paths, self.ends, self._clock, self._lacking
        arrivals, leaving, free = self.arrivals, self._leaving, self._free
        events, runnable, all_steps = self._events, self._runnable, self._steps
        messages_of_round = sums_of_round = 0
        repeats = self._rounds
        if repeats is not None:
            more = rounds * repeats.messages + repeats.other_messages - len(arrivals)
            arrivals += [-1.0] * more
            leaving += [0.0] * more
            sums.add(repeats.all_reduces * (rounds - self._allowed))
            self._allowed = rounds
            messages_of_round, sums_of_round = repeats.messages, len(repeats.all_reduces)
        runnable += self._stopped
        self._stopped = []
        limit = math.inf

        def go_on(number: int, following: Next) -> None:
            begin, freed = following
            runnable.extend(freed)
            if begin is not None:
                heappush(events, (begin, (_A_BUCKET << ROUTE_BITS) + number, 0))

        while True:
            while runnable:
                worker = runnable.pop()
                seconds, done = costs.seconds[worker], ends[worker]
                steps, now = all_steps[worker], clock[worker]
                turn = self._turn[worker]
                first = self._position[worker]
                shift = max(turn, 0) * messages_of_round
                while True:
                    for position in range(first, len(steps)):
                        waits, kind, sends, number = steps[position]
                        for message in waits:
                            arrival = arrivals[message + shift]
                            if arrival < 0.0:
                                lacking[worker] = message + shift
                                break
                            if arrival > now:
                                now = arrival
                        else:
                            if kind >= 0:
                                if kind == SUMMED_BACKWARD:
                                    number += max(turn, 0) * sums_of_round
                                    go_on(number, sums.release(number, worker, now))
                                now += seconds[kind]
                            else:
                                number += max(turn, 0) * sums_of_round
                                if kind != FINISH_SUM and sums.ends[number] < 0.0:
                                    go_on(number, sums.join(number, now))
                                end = sums.ends[number]
                                if end < 0.0:
                                    sums.wait(number, worker)
                                    break
                                if end > now:
                                    now = end
                            done.append(now)
                            for message in sends:
                                heappush(events, (now, message + shift, 0))
                            continue
                        break
                    else:
                        position = len(steps)
                        if repeats is not None:
                            if turn + 1 < rounds:
                                turn += 1
                                steps = repeats.steps[worker]
                                first, shift = 0, turn * messages_of_round
                                continue
                            self._stopped.append(worker)
                            limit = min(limit, now)
                    break
                all_steps[worker], self._position[worker] = steps, position
                clock[worker], self._turn[worker] = now, turn
            if not events:
                break
            if events[0][0] >= limit and not to_the_end:
                break
            now, number, first_hop = heappop(events)
            code = number >> ROUTE_BITS
            if code == _A_BUCKET:
                # It takes its place at all of its ports now, also where it comes a little later.
                last_left, summed = now, number & _MESSAGE
                for hops in sums.ring(summed).links:
                    entered = now
                    for port, held in hops:
                        if free[port] > entered:
                            entered = free[port]
                        free[port] = left = entered + held
                        if left > last_left:
                            last_left = left
                go_on(summed, sums.passed(summed, last_left))
                continue
            path, message = paths[code], number & _MESSAGE
            hops = path.hops
            entered = now
            for hop in range(first_hop, len(hops)):
                port, held = hops[hop]
                if free[port] > entered:
                    entered = free[port]
                free[port] = left = entered + held
                if left > leaving[message]:
                    leaving[message] = left
                if entered > now and hop + 1 < len(hops):
                    # Until then others may come to the next port.
                    heappush(events, (entered, number, hop + 1))
                    break
            else:
                arrivals[message] = leaving[message] + path.latency_seconds
                if lacking[path.receiver] == message:
                    lacking[path.receiver] = -1
                    runnable.append(path.receiver)
