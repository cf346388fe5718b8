"""The event loop: when every step of a program ends.

Only what is shared needs an order in time: ports, and cores. So a worker is played on, step after
step, until it lacks a message, and just its sends become events; the earliest event is next. What a
worker does later comes from messages that arrive later, so no event is ever overtaken. Workers that
share the cores of a host begin and end their steps by events too.

Ties go to the message that comes first in the program, so that it is always played alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from drlpp.simulator.cores import CoreGroup
from drlpp.simulator.costs import Costs
from drlpp.simulator.program import FINISH_SUM, SUMMED_BACKWARD, Program
from drlpp.simulator.sums import Sums


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
    steps_of, seconds_of = program.steps, costs.seconds
    route_of, paths = program.route_of, costs.paths
    workers, messages = len(steps_of), len(route_of)
    sums = Sums(program, costs)
    groups = [CoreGroup(cores) for _, cores in costs.core_groups]
    group_of = [-1] * workers
    for group, (members, _) in enumerate(costs.core_groups):
        for worker in members:
            group_of[worker] = group
    ends: list[list[float]] = [[] for _ in range(workers)]
    clock = [0.0] * workers
    lacking = [-1] * workers
    arrivals = [-1.0] * messages
    leaving = [0.0] * messages
    free = [0.0] * costs.ports
    # (seconds, number, detail). By number: a message, with the hop it has come to; then a worker
    # that begins a step on shared cores; then a group of these, whose next end was foretold.
    events: list[tuple[float, int, int]] = []
    runnable = list(range(workers - 1, -1, -1))
    while True:
        while runnable:
            worker = runnable.pop()
            steps, seconds, done = steps_of[worker], seconds_of[worker], ends[worker]
            now = clock[worker]
            for position in range(len(done), len(steps)):
                waits, kind, sends, number = steps[position]
                for message in waits:
                    arrival = arrivals[message]
                    if arrival < 0.0:
                        lacking[worker] = message
                        break
                    if arrival > now:
                        now = arrival
                else:
                    if kind >= 0:
                        if group_of[worker] >= 0 and seconds[kind]:
                            heappush(events, (now, messages + worker, 0))
                            break
                        if kind == SUMMED_BACKWARD:
                            runnable += sums.release(number, worker, now)
                        now += seconds[kind]
                    else:
                        if kind != FINISH_SUM and sums.ends[number] < 0.0:
                            runnable += sums.join(number, now)
                        end = sums.ends[number]
                        if end < 0.0:
                            sums.wait(number, worker)
                            break
                        if end > now:
                            now = end
                    done.append(now)
                    for message in sends:
                        heappush(events, (now, message, 0))
                    continue
                break
            clock[worker] = now
        if not events:
            break
        now, number, detail = heappop(events)
        if number < messages:
            path = paths[route_of[number]]
            hops = path.hops
            entered = now
            for hop in range(detail, len(hops)):
                port, held = hops[hop]
                if free[port] > entered:
                    entered = free[port]
                free[port] = left = entered + held
                if left > leaving[number]:
                    leaving[number] = left
                if entered > now and hop + 1 < len(hops):
                    # Until then others may come to the next port.
                    heappush(events, (entered, number, hop + 1))
                    break
            else:
                arrivals[number] = leaving[number] + path.latency_seconds
                if lacking[path.receiver] == number:
                    lacking[path.receiver] = -1
                    runnable.append(path.receiver)
            continue
        if number < messages + workers:
            worker = number - messages
            group = group_of[worker]
            kind = steps_of[worker][len(ends[worker])][1]
            marks = costs.ready_seconds[worker] if kind == SUMMED_BACKWARD else ()
            groups[group].start(now, worker, seconds_of[worker][kind], marks)
        else:
            group = number - messages - workers
            if detail != groups[group].stamp:
                continue
            worker, mark = groups[group].pop(now)
            _, kind, sends, number = steps_of[worker][len(ends[worker])]
            if kind == SUMMED_BACKWARD and mark < len(costs.ready_seconds[worker]):
                runnable += sums.release_bucket(number, mark, now)
            else:
                groups[group].end()
                clock[worker] = now
                ends[worker].append(now)
                for message in sends:
                    heappush(events, (now, message, 0))
                runnable.append(worker)
        foretold = groups[group].next_seconds()
        if foretold is not None:
            heappush(events, (foretold, messages + workers + group, groups[group].stamp))
    if any(len(done) < len(steps) for done, steps in zip(ends, steps_of, strict=True)):
        raise RuntimeError("the schedule cannot proceed; its workers wait for each other")
    return Played(ends, arrivals)
