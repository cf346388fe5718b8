"""Schedules that never end: how they begin, and the round that repeats from then on.

All workers repeat themselves after a *round*, the fewest minibatches that make whole updates of all
stages and give every replica its parts as before. So a short schedule is written down, with two
rounds that repeat, and the first of them is played again and again. Nothing drains.

Messages are numbered by their routes. If a route has q messages in a round and had b before the
first round that repeats, its message b + t q + j belongs to round t, and so to the numbers of that
round; messages of negative rounds are those that come before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import Generic, TypeVar

from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator.playing.program import ROUTE_BITS, Program, Rounds, Step, no_search_for_cycles

Kind = TypeVar("Kind")

_MESSAGE = (1 << ROUTE_BITS) - 1

LONGEST_ROUND = 512
"""Minibatches of the longest round that is looked for: 5, 7 and 8 replicas make one of 280."""

_MOST_PASSES = 100_000
"""Forward passes of the longest schedule that is compiled to find its round."""


@dataclass(frozen=True, eq=False)
class EndlessProgram:
    """What every worker does until the first round that repeats, and in each such round.

    Attributes:
        minibatches: of a round.
        before: the program until then, whose updates are also those of the first such round.
        rounds_before: minibatches of ``before``, in rounds.
        rounds: what repeats.
        first_message: of the first round that repeats.
        rounds_in_flight: the most rounds whose minibatches are on their way at once.
        route_messages: how many messages each route has in a round.
    """

    minibatches: int
    before: Program
    rounds_before: int
    rounds: Rounds
    first_message: int
    rounds_in_flight: int
    route_messages: tuple[int, ...]


def endless_for(pipeline: Pipeline, method: Method) -> EndlessProgram | None:
    """Return what repeats for ever; the numbers of its workers do not matter.

    None is where it cannot be found (:func:`endless_program`).
    """
    return _cached_endless(pipeline.numbered, method)


@lru_cache(maxsize=256)
def _cached_endless(shape: Pipeline, method: Method) -> EndlessProgram | None:
    with no_search_for_cycles():
        return endless_program(shape, method)


def endless_program(pipeline: Pipeline, method: Method) -> EndlessProgram | None:
    """Find what repeats in the schedule of a pipeline.

    Returns:
        None if a round is too long, or nothing repeats.
    """
    minibatches = round_of(pipeline, method)
    in_flight = method.minibatches_in_flight(pipeline)
    # At the end of the first round asynchronous stages are as many minibatches ahead as they will
    # ever be.
    before = 0 if method.flushes else 1
    if pipeline.ties and before:
        # A copy makes its first update when parts come that met it at the root.
        before += -(-in_flight // minibatches)
    through = (before + 2) * minibatches
    passes = through * method.microbatches * len(pipeline.stages)
    if minibatches > LONGEST_ROUND or passes > _MOST_PASSES:
        return None
    sample = Program.of(method.schedule_for(pipeline, through + in_flight, through))
    cut = _Cut.of(sample, [(before + turn) * minibatches for turn in range(3)])
    if cut is None:
        return None
    return EndlessProgram(
        minibatches=minibatches,
        before=cut.before,
        rounds_before=before,
        rounds=cut.rounds,
        first_message=cut.first_message,
        rounds_in_flight=-(-in_flight // minibatches),
        route_messages=cut.route_messages,
    )


def round_of(pipeline: Pipeline, method: Method) -> int:
    """Return the minibatches after which all workers do the same again."""
    parts = method.microbatches
    turns = (len(stage) // math.gcd(len(stage), parts) for stage in pipeline.stages)
    together = method.accumulate if method.flushes else method.minibatches_together(pipeline)
    return math.lcm(together, *turns)


@dataclass(frozen=True)
class _Cut:
    """A program cut where its first round that repeats begins and ends."""

    before: Program
    rounds: Rounds
    first_message: int
    route_messages: tuple[int, ...]

    @classmethod
    def of(cls, sample: Program, borders: Sequence[int]) -> _Cut | None:
        """Cut where so many minibatches are complete; None if the rounds in between differ."""
        parts: tuple[list[Sequence[Step]], ...] = ([], [], [])
        for of_worker, updates in zip(sample.steps, sample.updates, strict=True):
            behind = {0: 0} | {through: step + 1 for step, through in updates}
            if any(border not in behind for border in borders):
                return None
            ends = [0, *(behind[border] for border in borders)]
            for part, (begin, end) in zip(parts, pairwise(ends), strict=True):
                part.append(of_worker[begin:end])
        before, repeated, again = parts
        messages = _Numbers.of(
            sample.route_of,
            *({m & _MESSAGE for *_, sent, _ in _flat(part) for m in sent} for part in parts[:2]),
        )
        sums = _Numbers.of(
            sample.all_reduces, *({n for *_, n in _flat(part) if n >= 0} for part in parts[:2])
        )
        if messages is None or sums is None:
            return None

        def numbered(of_worker: Sequence[Step], back: int) -> tuple[Step, ...]:
            """Return steps with new numbers, as of so many rounds earlier."""
            of_message = [number - back * messages.each for number in messages.new]
            of_sum = [number - back * sums.each for number in sums.new]
            return tuple(
                (
                    tuple([of_message[number] for number in waits]),
                    kind,
                    tuple([(m & ~_MESSAGE) + of_message[m & _MESSAGE] for m in sends]),
                    of_sum[number] if number >= 0 else -1,
                )
                for waits, kind, sends, number in of_worker
            )

        steps = tuple(numbered(of_worker, 0) for of_worker in repeated)
        if steps != tuple(numbered(of_worker, 1) for of_worker in again):
            return None
        all_reduces = tuple(kind for kind, count in sums.of_round.items() for _ in range(count))
        return cls(
            before=replace(
                sample,
                steps=tuple(numbered(of_worker, 0) for of_worker in before),
                route_of=(),
                all_reduces=all_reduces * sums.rounds_before,
            ),
            rounds=Rounds(
                steps=steps,
                messages=messages.each,
                # Receivers may be ahead of senders that have stopped.
                other_messages=(2 * messages.rounds_before + 1) * messages.each,
                all_reduces=all_reduces,
            ),
            first_message=messages.rounds_before * messages.each,
            route_messages=tuple(messages.of_round.get(r, 0) for r in range(len(sample.routes))),
        )


def _flat(steps: Iterable[Sequence[Step]]) -> Iterator[Step]:
    """Yield the steps of all workers."""
    return chain.from_iterable(steps)


@dataclass(frozen=True)
class _Numbers(Generic[Kind]):
    """New numbers of messages, or of all-reduces: those of a round are next to each other.

    Attributes:
        new: the new number of every old one.
        of_round: how many of every kind a round has.
        each: how many it has together.
        rounds_before: which numbers are left free for what comes before the first one.
    """

    new: list[int]
    of_round: dict[Kind, int]
    each: int
    rounds_before: int

    @classmethod
    def of(
        cls, kind_of: Sequence[Kind], before: Collection[int], repeated: Collection[int]
    ) -> _Numbers[Kind] | None:
        """Give new numbers to what belongs to kinds, in the order of the old ones.

        Args:
            kind_of: what every old number is of.
            before: which are sent, or summed, before the first round.
            repeated: and which are in it.

        Returns:
            None if there is a kind that comes before the first round and never again.
        """
        of_round = dict(sorted(Counter(kind_of[number] for number in repeated).items()))
        first = Counter(kind_of[number] for number in before)
        if any(kind not in of_round for kind in kind_of):
            return None
        offset = dict(zip(of_round, accumulate(of_round.values(), initial=0), strict=False))
        each = len(repeated)
        rounds = max([1, *(-(-first[kind] // count) for kind, count in of_round.items())])
        seen: Counter[Kind] = Counter()
        new = []
        for kind in kind_of:
            turn, place = divmod(seen[kind] - first[kind], of_round[kind])
            new.append((rounds + turn) * each + offset[kind] + place)
            seen[kind] += 1
        return cls(new, of_round, each, rounds)
