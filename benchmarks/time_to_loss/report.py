"""Time to a loss as a table: measured seconds per minibatch times replayed minibatches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pandas import DataFrame

from benchmarks.learning.samples_needed import PLAIN, SamplesNeeded
from benchmarks.report import markdown
from benchmarks.time_to_loss.seconds import DIVIDED, KINDS, WHOLE, Speed
from drlpp.schedule.analysis.samples_needed import samples_needed

BEGIN = "<!-- results: written by benchmarks.time_to_loss -->"
END = "<!-- end of results -->"

DEFAULT = "the default"
"""What ``drlpp learn`` would take on all workers, of the two kinds of PipeOptim that are timed."""


class TimeToLoss(NamedTuple):
    """What a contender takes to plain PyTorch's loss.

    Attributes:
        speed: who, and how fast.
        seconds: to the loss.
        low, high: by the standard deviation of the minibatches over seeds.
    """

    speed: Speed
    seconds: float
    low: float
    high: float

    def __str__(self) -> str:
        seconds, low, high = (float(f"{x:.2g}") for x in (self.seconds, self.low, self.high))
        return f"{seconds:g}" + ("" if low == high else f" ({low:g}–{high:g})")


def replay_of(speed: Speed, needed: Iterable[SamplesNeeded]) -> SamplesNeeded | None:
    """Return what a replay of a contender found, None if none was made."""
    is_late = speed.kind in (WHOLE, DIVIDED)
    who = (speed.kind, speed.accelerators) if is_late else (PLAIN, 1)
    return next((one for one in needed if (one.method, one.depth) == who), None)


def time_to_loss(speed: Speed, needed: Iterable[SamplesNeeded]) -> TimeToLoss | None:
    """Return what a contender takes, None if it never got there, or was not replayed.

    Args:
        speed: of the contender.
        needed: what replays of its task found.
    """
    found = replay_of(speed, needed)
    if found is None or found.ratio is None:
        return None
    unit = speed.median * found.minibatches
    low, high = found.ratio - found.deviation, found.ratio + found.deviation
    return TimeToLoss(speed, unit * found.ratio, unit * low, unit * high)


def table(speeds: Iterable[Speed], needed: Sequence[SamplesNeeded]) -> str:
    """Return a task's table in Markdown: a row for each number of workers and kind of links.

    A cell is of all workers, and after a semicolon of the best that uses fewer, if it is sooner.
    The default's is of all workers alone.
    """
    cells: dict[tuple[int, str], list[Speed]] = {}
    for speed in speeds:
        if speed.seconds:
            cells.setdefault((speed.workers, speed.links), []).append(speed)
    rows = []
    for (workers, links), found in sorted(cells.items()):
        times = [time for one in found if (time := time_to_loss(one, needed)) is not None]
        soonest = min(times, key=lambda time: time.seconds)
        kinds = {
            kind: _cell(workers, [one for one in found if one.kind == kind], needed)
            for kind in KINDS
        }
        rows.append(
            {
                "workers": str(workers),
                "links": links,
                **kinds,
                DEFAULT: _default_cell(chosen(found, workers), needed),
                "soonest": f"{soonest.speed.kind}, {soonest.speed.accelerators}",
            }
        )
    return markdown(DataFrame(rows))


def chosen(speeds: Iterable[Speed], workers: int) -> Speed | None:
    """Return what the default takes, None if no kind of PipeOptim was timed on all workers.

    That is the least product of seconds per minibatch and the samples that gradients as late as
    this need (:func:`~drlpp.schedule.analysis.staleness.samples_needed`), with a stage on each
    worker.
    """
    return min(
        (one for one in speeds if one.kind in (WHOLE, DIVIDED) and one.accelerators == workers),
        key=lambda one: one.median * samples_needed((workers - 1) / one.microbatches),
        default=None,
    )


def _default_cell(taken: Speed | None, needed: Sequence[SamplesNeeded]) -> str:
    if taken is None or replay_of(taken, needed) is None:
        return "–"
    return f"{_cell(taken.workers, [taken], needed)}, M = {taken.microbatches}"


def _cell(workers: int, measured: Sequence[Speed], needed: Sequence[SamplesNeeded]) -> str:
    """Return the time on all workers, and the best on fewer if that is sooner."""
    replayed = [speed for speed in measured if replay_of(speed, needed) is not None]
    if not replayed:
        return "–"
    times = {speed: time_to_loss(speed, needed) for speed in replayed}

    def seconds(speed: Speed) -> float:
        time = times[speed]
        return math.inf if time is None else time.seconds

    best = min(replayed, key=lambda speed: (seconds(speed), -speed.accelerators))
    text = str(times[best] or "never")
    if 1 < best.accelerators < workers:
        text += f" on {best.accelerators}"
    whole = next((speed for speed in replayed if speed.accelerators == workers), best)
    return text if whole is best else f"{times[whole] or 'never'}; {text}"
