"""Which way of training reaches a loss first, plain PyTorch included?

A pipeline computes what the replays of ``to-loss`` compute, so its time to a loss is its seconds
per minibatch, measured here, times the minibatches that a replay needs. Measuring takes two minutes
for all ways, where racing takes half an hour (``drlpp race`` does that).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pandas import DataFrame

from benchmarks.learning.study import Learned
from benchmarks.learning.tasks import TASKS
from benchmarks.learning.to_loss import DIVIDED, WHOLE, minibatches_needed
from benchmarks.learning.to_loss import PLAIN as REPLAYED_PLAIN
from benchmarks.learning.to_loss import STUDY as TO_LOSS
from benchmarks.study import Needs, Row, Study
from drlpp.capturing.capture import capture
from drlpp.io.documents import Record
from drlpp.planners import Space
from drlpp.racing.contenders import Contender
from drlpp.racing.race import cost_of, measure_round
from drlpp.racing.rivals import PLAIN, Grounds, measure, usual_candidates
from drlpp.runtime import ClusterSession
from drlpp.schedule.analysis.staleness import samples_needed
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B
from drlpp.schedule.kinds.zero_bubble_h1 import ZERO_BUBBLE_H1
from drlpp.schedule.kinds.zero_bubble_v import ZERO_BUBBLE_V
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

DATA_PARALLEL = "data parallelism"
_FLUSHED = {
    FLUSHED_1F1B.name: "flushed 1F1B",
    ZERO_BUBBLE_H1.name: "ZB-H1",
    ZERO_BUBBLE_V.name: "ZB-V",
}
KINDS = (PLAIN, DATA_PARALLEL, *_FLUSHED.values(), WHOLE, DIVIDED)
"""Columns of the table. The last two are methods of ``to-loss``, too."""
_TASKS = ("race-decoder", "race-cnn", "race-dates", "race-mlp")
_LINKS = {"1 Gbit/s": "auto", "fast": None}
"""What lies between the workers, and the Ray cluster that has them; its hosts are emulated."""
_RATE = 0.003
_ROUNDS = 3


class Case(Record):
    """A task on so many emulated accelerators, and the minibatches of a measurement."""

    task: str
    workers: int
    links: str
    minibatches: int = 30


class Speed(Record):
    """How fast one way of training was.

    Attributes:
        kind: one of :data:`KINDS`.
        accelerators: how many it used.
        microbatches: in a minibatch.
        seconds: per minibatch, of every round.
    """

    kind: str
    accelerators: int
    microbatches: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds per minibatch of the round in the middle."""
        return statistics.median(self.seconds)


class Timed(Row):
    """What was measured of all ways of training; those that failed are left out."""

    case: Case
    speeds: tuple[Speed, ...]


class TimeToLoss(NamedTuple):
    """What a way of training takes to plain PyTorch's loss.

    Attributes:
        speed: which, and how fast.
        seconds: to the loss; infinite if a replay was given up.
        deviation: by that of the minibatches over seeds.
    """

    speed: Speed
    seconds: float
    deviation: float

    def __str__(self) -> str:
        if math.isinf(self.seconds):
            return "never"
        ends = self.seconds - self.deviation, self.seconds + self.deviation
        seconds, low, high = (float(f"{x:.2g}") for x in (self.seconds, *ends))
        return f"{seconds:g}" + ("" if low == high else f" ({low:g}–{high:g})")


class SecondsToLoss(Study[Case, Timed]):
    """Measured seconds per minibatch times replayed minibatches."""

    name = "to-loss-seconds"
    question = "Which way of training reaches a loss first, plain PyTorch included?"
    row = Timed
    needs = Needs(quiet=True, hours=1)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return tasks on two, four and eight workers; slow links need a cluster of Ray."""
        if short:
            return [Case(task="race-mlp", workers=2, links="fast", minibatches=4)]
        return [
            Case(task=task, workers=workers, links=links)
            for task in _TASKS
            for workers in (2, 4, 8)
            for links in _LINKS
        ]

    def run(self, case: Case) -> Timed:
        """Measure all ways of training in turns, there and back."""
        speed = min(0.9, 1.8 / case.workers)
        with ClusterSession(
            capture(TASKS[case.task].reference),
            case.workers,
            method=Method(clip_norm=1.0),
            optimizer=OptimizerSpec.parse("adamw", lr=_RATE),
            speeds=[speed] * case.workers,
            device="cpu",
            cluster=_LINKS[case.links],
        ) as session:
            grounds = Grounds(session, *session.profile(), Space(session.method))
            contenders = list(filter(_has_replay, usual_candidates(grounds)))
            seconds = _measure(session, contenders, case.minibatches)
        pairs = zip(contenders, seconds, strict=True)
        return Timed(case=case, speeds=tuple(_speed(one, took) for one, took in pairs if took))

    def table(self, rows: Sequence[Timed]) -> Mapping[str, DataFrame]:
        """Return a table for each task, with the replays in git."""
        tables, replayed = {}, TO_LOSS.stored()
        for task in dict.fromkeys(row.case.task for row in rows):
            found = [row for row in rows if row.case.task == task]
            title = f"{TASKS[task].title} ({task}): seconds to plain PyTorch's loss"
            tables[title] = DataFrame(_line(row, replayed) for row in found)
        return tables


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


def _has_replay(contender: Contender) -> bool:
    """Return whether replays tell the samples that it needs.

    The exact planner's may have replicas, and of twice as many microbatches as stages none was
    replayed.
    """
    placement, method = contender.placement, contender.method
    if placement is None or method.flushes:
        return True
    return contender.found_by != "exact" and method.microbatches <= len(placement.stages)


def _measure(
    session: ClusterSession, contenders: Sequence[Contender], minibatches: int
) -> list[list[float]]:
    """Return seconds per minibatch of all contenders; those that fail have none."""
    found: list[list[float]] = [[] for _ in contenders]
    running = list(range(len(contenders)))

    def run(index: int) -> float | None:
        return cost_of(measure(session, contenders[index], minibatches))

    for number in range(_ROUNDS):
        running = measure_round(number, running, run, found)
    return found


def _speed(contender: Contender, seconds: Sequence[float]) -> Speed:
    placement = contender.placement
    return Speed(
        kind=kind_of(contender),
        accelerators=1 if placement is None else len(placement.accelerators),
        microbatches=contender.method.microbatches,
        seconds=tuple(seconds),
    )


def _line(row: Timed, replayed: Sequence[Learned]) -> dict[str, str]:
    """Return a row's cells: of all workers, and after a semicolon of fewer, if that is sooner."""
    task, workers = row.case.task, row.case.workers
    times = [time for speed in row.speeds if (time := _time(task, speed, replayed)) is not None]
    soonest = min(times, key=lambda time: time.seconds).speed
    default = _default(row.speeds, workers)
    return {
        "workers": str(workers),
        "links": row.case.links,
        **{kind: _cell(workers, [t for t in times if t.speed.kind == kind]) for kind in KINDS},
        "the default": "–" if default is None else _default_cell(task, default, replayed),
        "soonest": f"{soonest.kind}, {soonest.accelerators}",
    }


def _time(task: str, speed: Speed, replayed: Sequence[Learned]) -> TimeToLoss | None:
    """Return the time to the loss; None if nothing was replayed."""
    is_late = speed.kind in (WHOLE, DIVIDED)
    method, depth = (speed.kind, speed.accelerators) if is_late else (REPLAYED_PLAIN, 1)
    needed = minibatches_needed(replayed, task, method, depth)
    if needed is None:
        return None
    return TimeToLoss(speed, speed.median * needed[0], speed.median * needed[1])


def _cell(workers: int, times: Sequence[TimeToLoss]) -> str:
    if not times:
        return "–"
    best = min(times, key=lambda time: (time.seconds, -time.speed.accelerators))
    text = str(best) + f" on {best.speed.accelerators}" * (1 < best.speed.accelerators < workers)
    whole = next((time for time in times if time.speed.accelerators == workers), best)
    return text if whole is best else f"{whole}; {text}"


def _default(speeds: Iterable[Speed], workers: int) -> Speed | None:
    """Return what ``drlpp learn`` would take, of the two kinds of PipeOptim on all workers.

    That is the least product of seconds per minibatch and the samples that gradients as late as
    this need by the study, whatever they need here.
    """
    return min(
        (one for one in speeds if one.kind in (WHOLE, DIVIDED) and one.accelerators == workers),
        key=lambda one: one.median * samples_needed((workers - 1) / one.microbatches),
        default=None,
    )


def _default_cell(task: str, speed: Speed, replayed: Sequence[Learned]) -> str:
    time = _time(task, speed, replayed)
    return "–" if time is None else f"{time}, M = {speed.microbatches}"


STUDY = SecondsToLoss()
