"""What rows are, and the tables of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest

import numpy
from pandas import DataFrame

from benchmarks.search.problems import Case
from benchmarks.study import Row
from drlpp.io.documents import Record

MEASUREMENTS = (0, 4, 8, 16, 48)

_SMALL = 0.005
"""What is expected to be saved where a run may end."""

_WITHOUT_GAIN = (0, 2, 3, 8)
"""Measurements in a row that made nothing faster: the least of every row of a table."""

_SURE = (0.0, 0.5, 0.8, 0.95, 1.0)
"""Borders of what is said, for the table of how often it holds."""


class Step(Record):
    """After a measurement: the true seconds of the fastest by measurement, and what is said of it.

    ``gain`` is what the best of each draw is expected to save, ``sureness`` how probable it is that
    nothing is more than 1% faster.
    """

    seconds: float
    gain: float
    sureness: float


class Found(Row):
    """What came out of a case; seconds are true ones, per minibatch.

    Attributes:
        best_known: of the best that is known.
        planned: of what the search with the declared costs takes, before all measurements.
        best_plan: of the fastest of the planners' placements, at NOAM and at the depth that suits
            each by the declared costs, and of data parallelism.
        data_parallel: of the best data parallelism.
        planned_by: the planner of ``best_plan``.
        steps: after every measurement; fewer than allowed if it settled.
        settled: whether it did.
        sureness: what is said at the end.
        took_seconds: the run, on the clock.
        cluster_seconds: what the measurements would take, warm-up left out.
        saved_seconds: what of it is saved where a measurement is three runs, and what is far slower
            than the fastest so far is not run again (``give_up`` of the guided agent).
    """

    case: Case
    best_known: float
    planned: float
    best_plan: float
    data_parallel: float | None = None
    planned_by: str | None = None
    steps: tuple[Step, ...] = ()
    settled: bool = False
    sureness: float = 0.0
    took_seconds: float = 0.0
    cluster_seconds: float = 0.0
    saved_seconds: float = 0.0

    def gap(self, measurements: int) -> float:
        """Return how far above the best known it is after so many measurements."""
        steps = self.steps[:measurements]
        return (steps[-1].seconds if steps else self.planned) / self.best_known - 1


def plans_table(rows: Sequence[Found]) -> DataFrame:
    """Return the gaps of plans, in percent, a line a problem that was only planned for."""

    def gap(seconds: float | None, row: Found) -> str:
        return "–" if seconds is None else f"{100 * (seconds / row.best_known - 1):.1f}%"

    return DataFrame(
        {
            "graph": row.case.graph,
            "accelerators": str(row.case.accelerators),
            "links": f"{row.case.bandwidth / 1e6:g} MB/s",
            "best known": f"{1e3 * row.best_known:.2f} ms",
            "data parallelism": gap(row.data_parallel, row),
            "planners": gap(row.best_plan, row),
            "fastest": row.planned_by or "–",
            "search": gap(row.planned, row),
        }
        for row in rows
        if row.case.measurements == 0
    )


def gaps(runs: Sequence[Found]) -> DataFrame:
    """Return gaps after some measurements, by what was declared and the accelerators."""
    groups: dict[tuple[str, str], list[Found]] = {}
    for one in runs:
        case = one.case
        key = "wrong" if case.wrong else "right", "unequal" if case.unequal else "equal"
        groups.setdefault(key, []).append(one)
    return DataFrame(
        [
            {
                "declared": declared,
                "speeds": speeds,
                "runs": str(len(found)),
                **dict(_gap_columns(found)),
                "measured (median)": f"{numpy.median([len(one.steps) for one in found]):g}",
            }
            for (declared, speeds), found in sorted(groups.items())
        ]
    )


def _gap_columns(runs: Sequence[Found]) -> Iterator[tuple[str, str]]:
    for count in MEASUREMENTS:
        # A run that ended by itself would have gone no further; of others nothing more is known,
        # and those that ended are the easy ones.
        if not all(one.settled or len(one.steps) >= count for one in runs):
            continue
        found = 100 * numpy.array([one.gap(count) for one in runs])
        within = (found <= 1).mean()
        yield (
            f"{count}: median / worst (within 1%)",
            f"{numpy.median(found):.1f} / {found.max():.1f} ({within:.0%})",
        )


def calibration(runs: Sequence[Found]) -> DataFrame:
    """Return how often the fastest is within 1%, by how sure it was said to be."""
    pairs = [
        (step.sureness, step.seconds <= 1.01 * one.best_known) for one in runs for step in one.steps
    ]
    last = [
        (one.sureness, one.steps[-1].seconds <= 1.01 * one.best_known) for one in runs if one.steps
    ]
    rows = []
    for low, high in pairwise(_SURE):
        row = {"sure": f"{low:.0%} to {high:.0%}"}
        for title, found in (("after every measurement", pairs), ("at the end", last)):
            held = [holds for sure, holds in found if low <= sure < high or sure == high == 1]
            row[title] = f"{numpy.mean(held):.0%} of {len(held)}" if held else "–"
        rows.append(row)
    return DataFrame(rows)


def expectations(runs: Sequence[Found]) -> DataFrame:
    """Return what is expected to be saved beside what the best known saves.

    By the measurements since the fastest became faster; without expectations that end a run.
    """
    found: dict[int, list[tuple[float, float]]] = {low: [] for low in _WITHOUT_GAIN}
    for one in runs:
        fastest, without = math.inf, -1
        for step in one.steps:
            without = 0 if step.seconds < 0.999 * fastest else without + 1
            fastest = min(fastest, step.seconds)
            if step.gain >= _SMALL:
                low = max(low for low in found if low <= without)
                found[low].append((step.gain, max(0.0, 1 - one.best_known / fastest)))
    rows = []
    for low, following in zip_longest(_WITHOUT_GAIN, _WITHOUT_GAIN[1:]):
        means = numpy.mean(found[low], axis=0) if found[low] else (math.nan, math.nan)
        if following is None:
            name = f"{low} or more"
        else:
            name = f"{low}" if following == low + 1 else f"{low} to {following - 1}"
        rows.append(
            {
                "measurements without a gain": name,
                "times": str(len(found[low])),
                "expected, %": f"{100 * means[0]:.1f}",
                "left, %": f"{100 * means[1]:.1f}",
            }
        )
    return DataFrame(rows)


def answer(rows: Sequence[Found]) -> str:
    """Return what came out, in a sentence for each kind of case."""
    parts = []
    if planned := [row for row in rows if row.case.measurements == 0]:
        texts = []
        for title, seconds in (
            ("the fastest planner", [row.best_plan for row in planned]),
            ("the search", [row.planned for row in planned]),
        ):
            above = [
                100 * (one / row.best_known - 1) for one, row in zip(seconds, planned, strict=True)
            ]
            texts.append(
                f"{title} {statistics.median(above):.1f}% in the median, {max(above):.0f}% at most"
            )
        parts.append(f"Plans above the best known, in {len(planned)} cases: {'; '.join(texts)}.")
    measured = [row for row in rows if row.case.measurements]
    if measured:
        within = numpy.mean([row.gap(16) <= 0.01 for row in measured])
        slower = sum(
            row.best_known * (1 + row.gap(16)) > row.best_plan * (1 + 1e-9) for row in measured
        )
        parts.append(
            f"After 16 measurements {within:.0%} of {len(measured)} cases are within 1% of the "
            f"best known; slower than the fastest plan or data parallelism: {slower}. A run takes "
            f"{numpy.median([row.cluster_seconds for row in measured]):.0f} s of the cluster in "
            f"the median. Not to run again what is far slower than the fastest saves "
            f"{_saved(measured)} of that."
        )
    return " ".join(parts)


def _saved(rows: Sequence[Found]) -> str:
    spent = sum(row.cluster_seconds for row in rows)
    return f"{sum(row.saved_seconds for row in rows) / spent:.0%}" if spent else "0%"
