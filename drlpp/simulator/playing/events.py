"""The event loop: when every step of a program ends.

Only ports are shared, and need an order in time. So a worker is played on, step after step, until
it lacks a message, and just its sends become events; the earliest event is next. What a worker does
later comes from messages that arrive later, so no event is ever overtaken.

Ties go to sums, whose last bucket is ready before its backward sends anything, then to the route
that comes first in the program, then to the older message, so that it is always played alike, in
every round.

The loop is one function on flat arrays. Where numba is installed (``pip install 'drlpp[fast]'``) it
is compiled once a process has played for a while; until then, and without numba, the same function
runs on lists. Times are equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy

from drlpp.costs.stage_cost import Array, Indices
from drlpp.simulator.playing.costs import Costs
from drlpp.simulator.playing.endless import EndlessProgram
from drlpp.simulator.playing.program import FINISH_SUM, SUMMED_BACKWARD, Program, begins_of
from drlpp.simulator.playing.tables import State, Tables

_NOT_YET = -1.0
"""The time of what has not happened."""

_RUNNABLE = -1
_AWAITS_SUM = -2
_DONE = -3
"""What a worker lacks, if it is no message."""

_HOP = 8
_MESSAGE = 1 << 43
"""An event is a number, by which those of the same moment are ordered.

That of a sum is its place. That of a message is 1 + its route times 2⁴³, its place times 8, and the
hop that it has come to.
"""


def play_rounds(
    tables: Any, costs: Any, sum_begins: Any, state: Any, rounds: int, to_the_end: bool
) -> list[tuple[float, int, float]]:
    """Play on until all workers have done so many rounds, or may not go on.

    Args:
        tables: :class:`~drlpp.simulator.playing.tables.Tables`, of lists or, compiled, arrays.
        costs: likewise :class:`~drlpp.simulator.playing.costs.Costs`.
        sum_begins: the first bucket of every sum of a round, and how many all have.
        state: likewise :class:`~drlpp.simulator.playing.tables.State`; all of it but what is to
            come changes.
        rounds, to_the_end: as in :meth:`Play.play`.

    Returns:
        What is to come: its time, its event, and when a message leaves the ports behind it.
    """
    begins, round_begins, kinds = tables.begins, tables.round_begins, tables.kinds
    wait_begins, waits = tables.wait_begins, tables.waits
    send_begins, sends, routes = tables.send_begins, tables.sends, tables.routes
    sums, sum_kinds, receivers = tables.sums, tables.sum_kinds, tables.receivers
    step_columns, message_columns = tables.steps, tables.messages
    sum_columns = tables.sums_of_round
    step_seconds, kinds_of_worker = costs.seconds, costs.kinds
    ready_begins, ready_seconds = costs.ready_begins, costs.ready
    hop_begins, hop_ports, hop_seconds = costs.hop_begins, costs.hop_ports, costs.hop_seconds
    latency, bucket_begins = costs.latency, costs.bucket_begins
    ring_begins, ring_firsts, ring_ports = costs.ring_begins, costs.ring_firsts, costs.ring_ports
    ring_seconds, ring_latency = costs.ring_seconds, costs.ring_latency
    lacking, next_waiting, free = state.lacking, state.next_waiting, state.free
    ends, arrivals = state.ends, state.arrivals
    bucket, sum_end, on_its_way = state.bucket, state.sum_end, state.on_its_way
    waiting, missing, ready = state.waiting, state.missing, state.ready

    events = [
        (state.seconds[number], state.events[number], state.left[number])
        for number in range(len(state.seconds))
    ]
    runnable = [w for w in range(len(lacking) - 1, -1, -1) if lacking[w] == _RUNNABLE]
    # Sums that may go on; not empty at first, which says what it holds.
    going = [0]
    going.pop()
    limit = numpy.inf
    while True:
        while len(runnable) > 0 or len(going) > 0:
            if len(going) > 0:
                # A sum begins with its next buckets, or is complete.
                sum_ = going.pop()
                if on_its_way[sum_]:
                    continue
                row, column = sum_ // sum_columns, sum_ % sum_columns
                kind = sum_kinds[column]
                first = bucket_begins[kind]
                count = bucket_begins[kind + 1] - first
                place = row * sum_begins[sum_columns] + sum_begins[column]
                while bucket[sum_] < count and missing[place + bucket[sum_]] == 0:
                    begin = max(ready[place + bucket[sum_]], sum_end[sum_])
                    ring = first + bucket[sum_]
                    if ring_begins[ring + 1] > ring_begins[ring]:
                        on_its_way[sum_] = 1
                        heappush(events, (begin, sum_, 0.0))
                        break
                    sum_end[sum_] = begin + ring_latency[ring]
                    bucket[sum_] += 1
                if bucket[sum_] == count:
                    worker = waiting[sum_]
                    while worker >= 0:
                        lacking[worker] = _RUNNABLE
                        runnable.append(worker)
                        worker = next_waiting[worker]
                    waiting[sum_] = -1
                continue
            worker = runnable.pop()
            position, turn, now = state.position[worker], state.turn[worker], state.clock[worker]
            last = begins[worker + 1] if turn < 0 else round_begins[worker + 1]
            while True:
                if position == last:
                    if len(round_begins) == 0:
                        lacking[worker] = _DONE
                        break
                    if turn + 1 >= rounds:
                        # It has stopped.
                        limit = min(limit, now)
                        break
                    turn += 1
                    position, last = round_begins[worker], round_begins[worker + 1]
                turns = max(turn, 0)
                later = turns * message_columns
                lacks = _RUNNABLE
                for number in range(wait_begins[position], wait_begins[position + 1]):
                    arrived = arrivals[waits[number] + later]
                    if arrived < 0.0:
                        lacks = waits[number] + later
                        break
                    if arrived > now:
                        now = arrived
                if lacks >= 0:
                    lacking[worker] = lacks
                    break
                kind = kinds[position]
                if kind == SUMMED_BACKWARD or kind < 0:
                    sum_ = sums[position] + turns * sum_columns
                    row, column = sum_ // sum_columns, sum_ % sum_columns
                    place = row * sum_begins[sum_columns] + sum_begins[column]
                    count = sum_begins[column + 1] - sum_begins[column]
                    if kind >= 0:
                        first = ready_begins[worker]
                        for number in range(count):
                            moment = now + ready_seconds[first + number]
                            if moment > ready[place + number]:
                                ready[place + number] = moment
                            missing[place + number] -= 1
                        going.append(sum_)
                    elif bucket[sum_] < count:
                        if kind != FINISH_SUM:
                            for number in range(count):
                                if now > ready[place + number]:
                                    ready[place + number] = now
                                missing[place + number] -= 1
                            going.append(sum_)
                        next_waiting[worker], waiting[sum_] = waiting[sum_], worker
                        lacking[worker] = _AWAITS_SUM
                        break
                    elif sum_end[sum_] > now:
                        now = sum_end[sum_]
                if kind >= 0:
                    now += step_seconds[worker * kinds_of_worker + kind]
                ends[position + turns * step_columns] = now
                for number in range(send_begins[position], send_begins[position + 1]):
                    event = (routes[number] + 1) * _MESSAGE + (sends[number] + later) * _HOP
                    heappush(events, (now, event, 0.0))
                position += 1
            state.position[worker], state.turn[worker], state.clock[worker] = position, turn, now
        if len(events) == 0:
            break
        if events[0][0] >= limit and not to_the_end:
            break
        now, event, left = heappop(events)
        entered = now
        if event < _MESSAGE:
            # It takes its place at all of its ports now, also where it comes a little later.
            ring = bucket_begins[sum_kinds[event % sum_columns]] + bucket[event]
            left = now
            for number in range(ring_begins[ring], ring_begins[ring + 1]):
                if ring_firsts[number]:
                    entered = now
                port = ring_ports[number]
                if free[port] > entered:
                    entered = free[port]
                out = entered + ring_seconds[number]
                free[port] = out
                if out > left:
                    left = out
            sum_end[event] = left + ring_latency[ring]
            bucket[event] += 1
            on_its_way[event] = 0
            going.append(event)
            continue
        route, place = event // _MESSAGE - 1, event % _MESSAGE // _HOP
        hop, last = hop_begins[route] + event % _HOP, hop_begins[route + 1]
        while hop < last:
            port = hop_ports[hop]
            if free[port] > entered:
                entered = free[port]
            out = entered + hop_seconds[hop]
            free[port] = out
            if out > left:
                left = out
            hop += 1
            event += 1
            if entered > now and hop < last:
                # Until then others may come to the next port.
                heappush(events, (entered, event, left))
                hop = last + 1
        if hop == last:
            arrivals[place] = left + latency[route]
            worker = receivers[route]
            if lacking[worker] == place:
                lacking[worker] = _RUNNABLE
                runnable.append(worker)
    return events


def play(program: Program, costs: Costs) -> Play:
    """Play all steps.

    Raises:
        RuntimeError: if the workers would wait for each other for ever.
    """
    found = Play(program, costs)
    found.play()
    if found.steps < len(program.steps.kinds):
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
        steps: how many all workers have done.
    """

    _played = 0
    """Steps of all that were played in this process."""

    def __init__(
        self, program: Program, costs: Costs, endless: EndlessProgram | None = None
    ) -> None:
        self._tables = tables = Tables.of(program) if endless is None else endless.tables
        buckets = numpy.diff(costs.bucket_begins)[tables.sum_kinds]
        self._members = numpy.repeat(tables.members[tables.sum_kinds], buckets)
        self._compiled = _compiled() if Play._played >= _MANY_STEPS else None
        self._read = (
            Tables(*map(self._taken, tables)),
            Costs(*map(self._taken, costs)),
            self._taken(begins_of(buckets)),
        )
        self._rounds = self.steps = 0
        workers = len(tables.begins) - 1
        state = State(
            position=tables.begins[:-1].copy(),
            turn=numpy.full(workers, -1),
            clock=numpy.zeros(workers),
            lacking=numpy.full(workers, _RUNNABLE),
            next_waiting=numpy.full(workers, -1),
            free=numpy.zeros(costs.ports),
            ends=numpy.full(tables.begins[-1], _NOT_YET),
        )
        self._state = State(*map(self._taken, state))
        whole = int(endless is None)
        self._grow(0, tables.message_rows + whole, tables.sum_rows + whole)

    def _taken(self, array: Any) -> Any:
        """Return an array as the loop takes it; without a compiler it likes lists."""
        listed = self._compiled is None and isinstance(array, numpy.ndarray)
        return array.tolist() if listed else array

    def _grow(self, rounds: int, message_rows: int, sum_rows: int) -> None:
        """Make room for so many more."""
        tables, sums = self._tables, sum_rows * self._tables.sums_of_round
        new: dict[str, Any] = {
            "ends": numpy.full(rounds * tables.steps, _NOT_YET),
            "arrivals": numpy.full(message_rows * tables.messages, _NOT_YET),
        }
        if sums:
            new |= {
                "bucket": numpy.zeros(sums, dtype=int),
                "sum_end": numpy.zeros(sums),
                "on_its_way": numpy.zeros(sums, dtype=int),
                "waiting": numpy.full(sums, -1),
                "missing": numpy.tile(self._members, sum_rows),
                "ready": numpy.zeros(sum_rows * len(self._members)),
            }
        for name, more in new.items():
            old = getattr(self._state, name)
            compiled = self._compiled is not None
            new[name] = numpy.concatenate([old, more]) if compiled else old + more.tolist()
        self._state = self._state._replace(**new)
        self._rounds += rounds

    def play(self, rounds: int = 0, *, to_the_end: bool = False) -> None:
        """Play on until every worker has done so many rounds, or may not go on.

        Args:
            rounds: since the beginning.
            to_the_end: let all workers do them, though who is ahead has stopped by then, and could
                have had a say in when the others' messages pass. It cannot be continued.
        """
        more, before = max(0, rounds - self._rounds), self.steps
        self._grow(more, more, more)
        loop = self._compiled or play_rounds
        coming = loop(*self._read, self._state, rounds, to_the_end)
        self._state = self._state._replace(
            seconds=self._taken(numpy.array([seconds for seconds, _, _ in coming], dtype=float)),
            events=self._taken(numpy.array([event for _, event, _ in coming], dtype=int)),
            left=self._taken(numpy.array([left for _, _, left in coming], dtype=float)),
        )
        self.steps = int(self._done.sum())
        Play._played += self.steps - before

    @property
    def _done(self) -> Indices:
        """How many steps every worker has done."""
        tables, turn = self._tables, numpy.array(self._state.turn)
        done = numpy.array(self._state.position) - tables.begins[:-1]
        if len(tables.round_begins):
            counts = numpy.diff(tables.begins) + turn * numpy.diff(tables.round_begins)
            in_round = numpy.array(self._state.position) - tables.round_begins[:-1]
            done = numpy.where(turn < 0, done, counts + in_round)
        return done

    def ends_of(self, steps: Sequence[int]) -> list[float]:
        """Return when a step of every worker ended, in seconds since the start."""
        tables, numbers = self._tables, numpy.array(steps)
        places, counts = tables.begins[:-1] + numbers, numpy.diff(tables.begins)
        if len(tables.round_begins):
            turns, in_round = numpy.divmod(numbers - counts, numpy.diff(tables.round_begins))
            again = tables.round_begins[:-1] + in_round + turns * tables.steps
            places = numpy.where(numbers < counts, places, again)
        return [float(self._state.ends[place]) for place in places.tolist()]

    def rows(self) -> tuple[Array, Array]:
        """Return when the steps of every round ended, and its messages arrived; inf is not yet."""
        tables, state = self._tables, self._state
        ends = numpy.array(state.ends[tables.begins[-1] :])
        arrivals = numpy.array(state.arrivals[tables.message_rows * tables.messages :])
        ends[ends < 0] = arrivals[arrivals < 0] = numpy.inf
        return ends.reshape(self._rounds, tables.steps), arrivals.reshape(
            self._rounds, tables.messages
        )

    def steps_of(self, worker: int) -> Iterator[Played]:
        """Yield what a worker has done, by its index."""
        tables, state = self._tables, self._state
        first, last = tables.begins[worker : worker + 2].tolist()
        places = [(place, 0) for place in range(first, last)]
        if len(tables.round_begins):
            again = range(*tables.round_begins[worker : worker + 2].tolist())
            places += [(place, turn) for turn in range(self._rounds) for place in again]
        then = 0.0
        for place, turn in places[: self._done[worker]]:
            waits = tables.waits[tables.wait_begins[place] : tables.wait_begins[place + 1]]
            arrived = [float(state.arrivals[one + turn * tables.messages]) for one in waits]
            end = float(state.ends[place + turn * tables.steps])
            yield Played(int(tables.kinds[place]), arrived, max([then, *arrived]), end)
            then = end


class Played(NamedTuple):
    """A step that a worker has done.

    Attributes:
        kind: as in a program.
        arrived: when the messages arrived that it waited for.
        begin, end: of it; waiting for messages is before.
    """

    kind: int
    arrived: list[float]
    begin: float
    end: float


_MANY_STEPS = 300_000
"""Played in a process, after which the loop is compiled.

They take some seconds on lists, and a few milliseconds compiled. Compiling takes 7 s once, and
fetching what was compiled, for every process, one.
"""


@cache
def _compiled() -> Callable[..., Any] | None:
    """Return the compiled loop; None without numba, or a folder to keep what it compiles."""
    try:
        import numba

        return numba.njit(cache=True)(play_rounds)
    except (ImportError, RuntimeError):
        return None
