"""Schedules that never end: how they begin, and the round that repeats from then on.

All workers repeat themselves after a *round*, the fewest minibatches that make whole updates of all
stages and give every replica its parts as before. So a short schedule is compiled, with two rounds
that repeat, and the first of them is played again and again. Nothing drains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy

from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator.playing.one_f_one_b import program_of
from drlpp.simulator.playing.program import Program, Steps
from drlpp.simulator.playing.tables import Tables

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
        rounds: the steps of the workers in a round.
        rounds_in_flight: the most rounds whose minibatches are on their way at once.
    """

    minibatches: int
    before: Program
    rounds_before: int
    rounds: Steps
    rounds_in_flight: int

    def until(self, minibatches: int) -> list[int]:
        """Return the step of every worker that completes so many, in a round that repeats."""
        before = self.rounds_before * self.minibatches
        turn, place = divmod(minibatches - before - 1, self.minibatches)
        steps = zip(self.before.until(before + place + 1), self.rounds.counts.tolist(), strict=True)
        return [step + turn * count for step, count in steps]

    @cached_property
    def tables(self) -> Tables:
        """As the event loop reads it."""
        return Tables.of(self.before, self.rounds)


@lru_cache(maxsize=1024)
def endless_program(shape: Pipeline, method: Method) -> EndlessProgram | None:
    """Find what repeats in the schedule of a pipeline, whose workers are numbered by stage.

    Returns:
        None if a round is too long, or nothing repeats.
    """
    minibatches = round_of(shape, method)
    in_flight = method.minibatches_in_flight(shape)
    # At the end of the first round asynchronous stages are as many minibatches ahead as they will
    # ever be.
    before = 0 if method.flushes else 1
    if shape.ties and before:
        # A copy makes its first update when parts come that met it at the root.
        before += -(-in_flight // minibatches)
    through = (before + 2) * minibatches
    passes = through * method.microbatches * len(shape.stages)
    if minibatches > LONGEST_ROUND or passes > _MOST_PASSES:
        return None
    sample = program_of(shape, method, through + in_flight, through)
    ends = [_ends(sample, (before + turn) * minibatches) for turn in range(3)]
    if not all(ends):
        return None
    first, second, third = map(numpy.array, ends)
    rounds = sample.steps.between(first, second)
    if not rounds.same(sample.steps.between(second, third)):
        return None
    return EndlessProgram(
        minibatches=minibatches,
        before=replace(sample, steps=sample.steps.between(0 * first, first)),
        rounds_before=before,
        rounds=rounds,
        rounds_in_flight=-(-in_flight // minibatches),
    )


def round_of(pipeline: Pipeline, method: Method) -> int:
    """Return the minibatches after which all workers do the same again."""
    parts = method.microbatches
    turns = (len(stage) // math.gcd(len(stage), parts) for stage in pipeline.stages)
    together = method.accumulate if method.flushes else method.minibatches_together(pipeline)
    return math.lcm(together, *turns)


def _ends(program: Program, minibatches: int) -> list[int]:
    """Return how many steps each worker has done when so many minibatches are complete.

    None are returned where they are not complete together with an update.
    """
    found = []
    for updates in program.updates:
        behind = {0: 0} | {through: step + 1 for step, through in updates}
        if minibatches not in behind:
            return []
        found.append(behind[minibatches])
    return found
