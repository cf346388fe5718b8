"""Time to a loss as a table: measured seconds per minibatch times replayed minibatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pandas import DataFrame

from benchmarks.learning.samples_needed import PLAIN, SamplesNeeded
from benchmarks.report import markdown
from benchmarks.time_to_loss.seconds import DIVIDED, KINDS, WHOLE, Speed
from drlpp.schedule.analysis.staleness import samples_needed

BEGIN = "<!-- results: written by benchmarks.time_to_loss -->"
END = "<!-- end of results -->"

DEFAULT = "the default"
"""What ``drlpp learn`` takes of the two kinds of PipeOptim."""


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


def time_to_loss(speed: Speed, needed: Sequence[SamplesNeeded]) -> TimeToLoss | None:
    """Return what a contender takes, None if it never got there, or was not replayed.

    Args:
        speed: of the contender.
        needed: what replays of its task found; not empty.
    """
    is_late = speed.kind in (WHOLE, DIVIDED)
    who = (speed.kind, speed.accelerators) if is_late else (PLAIN, 1)
    found = next((one for one in needed if (one.method, one.depth) == who), None)
    if found is None or found.ratio is None:
        return None
    unit = speed.median * found.minibatches
    low, high = found.ratio - found.deviation, found.ratio + found.deviation
    return TimeToLoss(speed, unit * found.ratio, unit * low, unit * high)


def table(speeds: Iterable[Speed], needed: Sequence[SamplesNeeded]) -> str:
    """Return a task's table in Markdown: a row for each number of workers and kind of links.

    A cell is of all workers, and in brackets what the best takes that uses fewer, if it is sooner.
    """
    cells: dict[tuple[int, str], list[Speed]] = {}
    for speed in speeds:
        if speed.seconds:
            cells.setdefault((speed.workers, speed.links), []).append(speed)
    rows = []
    for (workers, links), found in sorted(cells.items()):
        times = [time for one in found if (time := time_to_loss(one, needed)) is not None]
        taken = list(chosen(found))
        chosen_times = [time for time in times if time.speed in taken]
        soonest = min(times, key=lambda time: time.seconds)
        rows.append(
            {
                "workers": str(workers),
                "links": links,
                **{kind: _cell(workers, *_of_kind(kind, found, times)) for kind in KINDS},
                DEFAULT: _cell(workers, taken, chosen_times),
                "soonest": f"{soonest.speed.kind}, {soonest.speed.accelerators}",
            }
        )
    return markdown(DataFrame(rows))


def chosen(speeds: Iterable[Speed]) -> Iterator[Speed]:
    """Yield for every number of stages what the default takes.

    That is the least product of seconds per minibatch and the samples that gradients as late as
    this need (:func:`~drlpp.schedule.analysis.staleness.samples_needed`).
    """
    asynchronous: dict[int, list[Speed]] = {}
    for speed in speeds:
        if speed.kind in (WHOLE, DIVIDED):
            asynchronous.setdefault(speed.accelerators, []).append(speed)
    for stages, found in asynchronous.items():
        yield min(
            found,
            key=lambda one: one.median * samples_needed((stages - 1) / one.microbatches),
        )


def _of_kind(
    kind: str, found: Sequence[Speed], times: Sequence[TimeToLoss]
) -> tuple[list[Speed], list[TimeToLoss]]:
    return (
        [speed for speed in found if speed.kind == kind],
        [time for time in times if time.speed.kind == kind],
    )


def _cell(workers: int, measured: Sequence[Speed], times: Sequence[TimeToLoss]) -> str:
    if not times:
        return "never" if measured else "–"
    whole = [time for time in times if time.speed.accelerators == workers]
    best = min(times, key=lambda time: time.seconds)
    if not whole:
        return f"{best}" if best.speed.accelerators == 1 else f"{best} on {best.speed.accelerators}"
    if best is whole[0]:
        return str(best)
    return f"{whole[0]}; {best} on {best.speed.accelerators}"
