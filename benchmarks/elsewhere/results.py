"""What was found, as lines of a file, and the tables of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from pandas import DataFrame

from benchmarks.machine import Machine
from drlpp.io.documents import Record
from drlpp.io.formatting import seconds_text


class TrainedRow(Record):
    """What torch's runtime made of a placement.

    Attributes:
        model, ranks, method, configuration: of what was trained.
        difference: the largest of any weight from our reference; None if there is no bundle.
        moved: the most that training has changed a weight.
        refused: why there is none.
    """

    model: str
    ranks: int
    method: str
    configuration: str
    difference: float | None = None
    moved: float = 0.0
    refused: str = ""


class SpeedRow(Record):
    """What a minibatch takes by one cut.

    Attributes:
        model, method, split, configuration: of what was run.
        speeds: of the accelerators.
        minibatches: of a timing.
        torch, ours: seconds of every round, in torch's runtime and in ours.
        refused: why it cannot be run.
    """

    model: str
    method: str
    split: str
    configuration: str
    speeds: tuple[float, ...]
    minibatches: int
    torch: tuple[float, ...] = ()
    ours: tuple[float, ...] = ()
    refused: str = ""


class Line(Record):
    """A cell of the study: a training, or all timings of a model on some accelerators.

    Attributes:
        machine: that it was found on.
        rounds: of timings; 0 for a training.
        trained: of a training.
        timed: a row for each method and cut.
    """

    machine: Machine
    rounds: int = 0
    trained: TrainedRow | None = None
    timed: tuple[SpeedRow, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """What no second line is of."""
        if self.trained is not None:
            return self.trained.model, self.trained.ranks, self.trained.method
        first = self.timed[0]
        return first.model, first.speeds, self.rounds, first.minibatches


def weights_table(rows: Iterable[TrainedRow]) -> DataFrame:
    """Return a line for each."""
    return DataFrame(
        {
            "model": row.model,
            "ranks": str(row.ranks),
            "method": row.method,
            "stages": row.configuration,
            "largest difference": "refused" if row.difference is None else f"{row.difference:.1e}",
            "largest change": "–" if row.difference is None else f"{row.moved:.1e}",
        }
        for row in rows
    )


def speed_table(cells: Iterable[Sequence[SpeedRow]]) -> DataFrame:
    """Return a line for each row: medians, and how much longer than the plan's, within rounds.

    Args:
        cells: rows that were timed in turns, each with a plan for every method.
    """
    compared = [
        (row, plan)
        for rows in cells
        for row in rows
        for plan in rows
        if plan.split == "plan" and plan.method == row.method
    ]
    return DataFrame(
        {
            "model": row.model,
            "accelerators": str(len(row.speeds)),
            "method": row.method,
            "cut": row.split,
            "stages": row.configuration,
            "rounds": f"{len(row.torch)} of {row.minibatches}",
            "in torch": "refused" if row.refused else seconds_text(statistics.median(row.torch)),
            "over the plan": _ratio(row.torch, plan.torch),
            "ours": seconds_text(statistics.median(row.ours)) if row.ours else "–",
            "torch over ours": _ratio(row.torch, row.ours),
        }
        for row, plan in compared
    )


def refusals(rows: Iterable[TrainedRow | SpeedRow]) -> list[str]:
    """Return a sentence for each reason for which a placement was refused, and whose it was."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.refused:
            found.setdefault(row.refused, []).append(f"{row.model} with {row.method}")
    return [f"{', '.join(dict.fromkeys(who))}: {why}" for why, who in found.items()]


def _ratio(seconds: Sequence[float], others: Sequence[float]) -> str:
    """Return the median of the ratios of rounds."""
    if not seconds or len(seconds) != len(others):
        return "–"
    pairs = zip(seconds, others, strict=True)
    return f"{statistics.median(one / other for one, other in pairs):.2f}×"
