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
from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Any

from drlpp.simulator.playing.costs import Costs
from drlpp.simulator.playing.endless import EndlessProgram
from drlpp.simulator.playing.program import FINISH_SUM, SUMMED_BACKWARD, Program, Step
from drlpp.simulator.playing.sums import RunningSum

_A_BUCKET = -1
"""Comes before all routes."""


def play(program: Program, costs: Costs) -> Play:
    """Play all steps.

    Raises:
        RuntimeError: if the workers would wait for each other for ever.
    """
    found = Play(program, costs)
    found.play()
    if any(len(done) < len(steps) for done, steps in zip(found.ends, program.steps, strict=True)):
        raise RuntimeError("the schedule cannot proceed; its workers wait for each other")
    return found


class Play:
    """Plays a program, and then rounds that repeat, as many as one likes.

    Once a worker has done all rounds that it may, nothing is played that comes after that moment:
    the worker could have a say in it. So it can always be continued, and what has been played
    stays as it is.

    Args:
        program: what is played first.
        costs: of all steps.
        endless: whose beginning it is, and whose rounds follow, again and again.

    Attributes:
        ends: of every worker's steps so far, in seconds since the start.
        arrivals: of the messages of every route so far.
    """

    def __init__(
        self, program: Program, costs: Costs, endless: EndlessProgram | None = None
    ) -> None:
        workers, routes = len(program.steps), len(program.routes)
        self._program, self._costs, self._endless = program, costs, endless
        self.ends: list[list[float]] = [[] for _ in range(workers)]
        self.arrivals: list[list[float]] = [[] for _ in range(routes)]
        self._sent, self._received = [0] * routes, [0] * routes
        self._free = [0.0] * costs.ports
        # (seconds, −1, order of a sum whose next bucket begins, 0, the sum), or
        # (seconds, route, number of a message, hop it has come to, when it leaves those before).
        self._events: list[tuple[float, int, Any, int, Any]] = []
        self._runnable = list(range(workers - 1, -1, -1))
        # Where every worker is: at which of its present steps, how often it has repeated them, and
        # on which route it lacks a message.
        self._steps = list(program.steps)
        self._position = [0] * workers
        self._turn = [-1] * workers
        self._clock = [0.0] * workers
        self._lacking = [-1] * workers
        self._stopped: list[int] = []
        # The sums of every kind, and how many of them each worker has done.
        self._sums: list[list[RunningSum]] = [[] for _ in program.sums]
        self._summed = [[0] * len(program.sums) for _ in range(workers)]

    def play(self, rounds: int = 0, *, to_the_end: bool = False) -> None:
        """Play on until every worker has done so many rounds, or may not go on.

        Args:
            rounds: since the beginning.
            to_the_end: let all workers do them, though who is ahead has stopped by then, and could
                have had a say in when the others' messages pass. It cannot be continued.
        """
        costs, repeats = self._costs, self._endless.rounds if self._endless else ()
        paths, ends, clock, lacking = costs.paths, self.ends, self._clock, self._lacking
        arrivals, sent, received, free = self.arrivals, self._sent, self._received, self._free
        events, runnable, all_steps = self._events, self._runnable, self._steps
        runnable += self._stopped
        self._stopped = []
        limit = math.inf

        def go_on(summed: RunningSum, begin: float | None) -> None:
            if begin is not None:
                heappush(events, (begin, _A_BUCKET, summed.order, 0, summed))
            elif summed.complete:
                runnable.extend(summed.waiting)
                summed.waiting.clear()

        while True:
            while runnable:
                worker = runnable.pop()
                seconds, done = costs.seconds[worker], ends[worker]
                steps, now = all_steps[worker], clock[worker]
                first = self._position[worker]
                while True:
                    for position in range(first, len(steps)):
                        waits, kind, sends, number = steps[position]
                        for taken, route in enumerate(waits):
                            arrived = arrivals[route]
                            message = received[route]
                            if message == len(arrived):
                                lacking[worker] = route
                                for other in waits[:taken]:
                                    received[other] -= 1
                                break
                            received[route] = message + 1
                            if arrived[message] > now:
                                now = arrived[message]
                        else:
                            if kind >= 0:
                                if kind == SUMMED_BACKWARD:
                                    summed = self._sum(number, worker)
                                    ready = [now + ready for ready in costs.ready_seconds[worker]]
                                    go_on(summed, summed.release(ready))
                                now += seconds[kind]
                            else:
                                summed = self._sum(number, worker)
                                if kind != FINISH_SUM and not summed.complete:
                                    go_on(summed, summed.join(now))
                                if not summed.complete:
                                    summed.waiting.append(worker)
                                    for other in waits:
                                        received[other] -= 1
                                    break
                                self._summed[worker][number] += 1
                                if summed.end > now:
                                    now = summed.end
                            done.append(now)
                            for route in sends:
                                heappush(events, (now, route, sent[route], 0, 0.0))
                                sent[route] += 1
                            continue
                        break
                    else:
                        position = len(steps)
                        if repeats:
                            if self._turn[worker] + 1 < rounds:
                                self._turn[worker] += 1
                                steps, first = repeats[worker], 0
                                continue
                            self._stopped.append(worker)
                            limit = min(limit, now)
                    break
                all_steps[worker], self._position[worker] = steps, position
                clock[worker] = now
            if not events:
                break
            if events[0][0] >= limit and not to_the_end:
                break
            now, route, message, first_hop, left = heappop(events)
            if route == _A_BUCKET:
                # It takes its place at all of its ports now, also where it comes a little later.
                summed, last_left = left, now
                for hops in summed.ring.links:
                    entered = now
                    for port, held in hops:
                        if free[port] > entered:
                            entered = free[port]
                        free[port] = left = entered + held
                        if left > last_left:
                            last_left = left
                go_on(summed, summed.passed(last_left))
                continue
            path = paths[route]
            hops = path.hops
            entered = now
            for hop in range(first_hop, len(hops)):
                port, held = hops[hop]
                if free[port] > entered:
                    entered = free[port]
                free[port] = out = entered + held
                if out > left:
                    left = out
                if entered > now and hop + 1 < len(hops):
                    # Until then others may come to the next port.
                    heappush(events, (entered, route, message, hop + 1, left))
                    break
            else:
                arrivals[route].append(left + path.latency_seconds)
                if lacking[path.receiver] == route:
                    lacking[path.receiver] = -1
                    runnable.append(path.receiver)

    def _sum(self, kind: int, worker: int) -> RunningSum:
        """Return the sum of a kind that a worker is at."""
        number, made = self._summed[worker][kind], self._sums[kind]
        if number == len(made):
            summed, turn = self._program.sums[kind], 0
            if self._endless is not None:
                before, of_round = self._endless.sums[kind]
                turn = (number - before) // of_round
            made.append(RunningSum(summed, self._costs.rings_of(summed), (turn, kind, number)))
        return made[number]


def step_times(steps: Iterable[Step], played: Play, worker: int) -> Iterator[tuple[float, float]]:
    """Begin and end of the steps of a worker, by its index; waiting for messages is before."""
    steps = list(steps)
    arrived = received(steps, played)
    before = 0.0
    for (waits, *_), end in zip(steps, played.ends[worker], strict=False):
        yield max([before, *(next(arrived) for _ in waits)]), end
        before = end


def received(steps: Iterable[Step], played: Play) -> Iterator[float]:
    """Yield when the messages arrived that the steps of a worker wait for."""
    taken: Counter[int] = Counter()
    for waits, *_ in steps:
        for route in waits:
            yield played.arrivals[route][taken[route]]
            taken[route] += 1
