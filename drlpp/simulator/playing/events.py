"""The event loop: when every step of a program ends.

Only what is shared needs an order in time: ports, and cores. So a worker is played on, step after
step, until it lacks a message, and just its sends become events; the earliest event is next. What a
worker does later comes from messages that arrive later, so no event is ever overtaken. Workers that
share the cores of a host begin and end their steps by events too.

Ties go to sums, whose last bucket is ready before its backward sends anything, then to the route
that comes first in the program, then to the older message, so that it is always played alike, in
every round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

from drlpp.simulator.playing.cores import CoreGroup
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
        self._groups = [CoreGroup(cores) for _, cores in costs.core_groups]
        self._group_of = [-1] * workers
        for group, (members, _) in enumerate(costs.core_groups):
            for worker in members:
                self._group_of[worker] = group
        self.ends: list[list[float]] = [[] for _ in range(workers)]
        self.arrivals = [-1.0] * messages
        self._leaving = [0.0] * messages
        self._free = [0.0] * costs.ports
        # (seconds, number, detail). By number, above its lower bits: a sum, whose next bucket
        # begins; then the route of a message, with the hop it has come to; then a worker that
        # begins a step on shared cores; then a group of these, whose next end was foretold.
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
        costs, sums, groups, group_of = self._costs, self._sums, self._groups, self._group_of
        paths, ends, clock, lacking = costs.paths, self.ends, self._clock, self._lacking
        arrivals, leaving, free = self.arrivals, self._leaving, self._free
        events, runnable, all_steps = self._events, self._runnable, self._steps
        routes, workers = len(paths), len(ends)
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
                                if group_of[worker] >= 0 and seconds[kind]:
                                    heappush(events, (now, routes + worker << ROUTE_BITS, 0))
                                    break
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
            now, number, detail = heappop(events)
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
            if code < routes:
                path, message = paths[code], number & _MESSAGE
                hops = path.hops
                entered = now
                for hop in range(detail, len(hops)):
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
                continue
            if code < routes + workers:
                worker = code - routes
                group = group_of[worker]
                kind = all_steps[worker][self._position[worker]][1]
                marks = costs.ready_seconds[worker] if kind == SUMMED_BACKWARD else ()
                groups[group].start(now, worker, costs.seconds[worker][kind], marks)
            else:
                group = code - routes - workers
                if detail != groups[group].stamp:
                    continue
                worker, mark = groups[group].pop(now)
                turn = max(self._turn[worker], 0)
                _, kind, sends, number = all_steps[worker][self._position[worker]]
                if kind == SUMMED_BACKWARD and mark < len(costs.ready_seconds[worker]):
                    number += turn * sums_of_round
                    go_on(number, sums.release_bucket(number, mark, now))
                else:
                    groups[group].end()
                    clock[worker] = now
                    ends[worker].append(now)
                    self._position[worker] += 1
                    for message in sends:
                        heappush(events, (now, message + turn * messages_of_round, 0))
                    runnable.append(worker)
            foretold = groups[group].next_seconds()
            if foretold is not None:
                heappush(
                    events,
                    (foretold, routes + workers + group << ROUTE_BITS, groups[group].stamp),
                )
