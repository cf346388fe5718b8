"""Seconds per minibatch of everybody who takes part in a race, without training to any loss.

A pipeline computes what the replays of :mod:`benchmarks.samples_to_loss` compute, so its time to a
loss is its seconds per minibatch times the minibatches that a replay needs. Measuring the first
takes two minutes for all, where racing takes half an hour.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Self

from drlpp.io.documents import Record
from drlpp.placement.measurement import FailedMeasurement
from drlpp.racing.contenders import Contender
from drlpp.racing.plain import measure_plain
from drlpp.racing.race import cost_of, measure_round
from drlpp.racing.rivals import PLAIN
from drlpp.runtime import ClusterSession
from drlpp.schedule.kinds.flushed_1f1b import FLUSHED_1F1B
from drlpp.schedule.kinds.zero_bubble_h1 import ZERO_BUBBLE_H1
from drlpp.schedule.kinds.zero_bubble_v import ZERO_BUBBLE_V

DATA_PARALLEL = "data parallelism"
WHOLE = "PipeOptim"
"""Over whole minibatches, as in the paper."""
DIVIDED = "PipeOptim, M = D"
FLUSHED, ZB_H1, ZB_V = "flushed 1F1B", "ZB-H1", "ZB-V"
_FLUSHED = {FLUSHED_1F1B.name: FLUSHED, ZERO_BUBBLE_H1.name: ZB_H1, ZERO_BUBBLE_V.name: ZB_V}
KINDS = (PLAIN, DATA_PARALLEL, FLUSHED, ZB_H1, ZB_V, WHOLE, DIVIDED)
"""Columns of the report. The last two are methods of the study of samples, too."""


class Speed(Record):
    """How fast one contender was.

    Attributes:
        task: name of the task.
        workers: how many there were.
        links: what lies between them, in words.
        kind: one of :data:`KINDS`.
        accelerators: how many it used.
        microbatches: in a minibatch.
        seconds: per minibatch, of every round.
    """

    task: str
    workers: int
    links: str
    kind: str
    accelerators: int
    microbatches: int
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, contender: Contender, seconds: Sequence[float], **where: object) -> Self:
        """Return what was measured of a contender."""
        placement = contender.placement
        return cls.model_validate(
            {
                "kind": kind_of(contender),
                "accelerators": 1 if placement is None else len(placement.accelerators),
                "microbatches": contender.method.microbatches,
                "seconds": tuple(seconds),
                **where,
            }
        )

    @property
    def median(self) -> float:
        """Seconds per minibatch of the round in the middle."""
        return statistics.median(self.seconds)


def kind_of(contender: Contender) -> str:
    """Return the column that a contender belongs to."""
    method = contender.method
    if contender.placement is None:
        return PLAIN
    if len(contender.placement.stages) == 1:
        return DATA_PARALLEL
    if method.flushes:
        return _FLUSHED[method.schedule]
    return WHOLE if method.microbatches == 1 else DIVIDED


def has_replay(contender: Contender) -> bool:
    """Return whether it has a column, for which replays tell the samples that it needs.

    The exact planner's may have replicas, and of twice as many microbatches as stages none was
    replayed.
    """
    placement, method = contender.placement, contender.method
    if placement is None or method.flushes:
        return True
    return contender.found_by != "exact" and method.microbatches <= len(placement.stages)


def measure(
    session: ClusterSession,
    contenders: Sequence[Contender],
    rounds: int,
    minibatches: int,
    tell: Callable[[str], None],
) -> list[list[float]]:
    """Return seconds per minibatch of all contenders, who run in turns, there and back.

    Who fails has no seconds.
    """
    found: list[list[float]] = [[] for _ in contenders]
    running = list(range(len(contenders)))

    def measure_one(index: int) -> float | None:
        contender = contenders[index]
        candidate = contender.candidate
        outcome = (
            measure_plain(session, contender.threads, minibatches, contender.method)
            if candidate is None
            else session.measure(candidate, minibatches)
        )
        if isinstance(outcome, FailedMeasurement):
            tell(f"{kind_of(contender)}, {contender.configuration}: {outcome.reason}")
        return cost_of(outcome)

    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        running = measure_round(number, running, measure_one, found)
    return found
