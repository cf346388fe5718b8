"""From samples to medians, ratios and verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pandas import DataFrame

from benchmarks.runtime_speed.samples import (
    ASYNCHRONOUS,
    DEEPER,
    Case,
    Contender,
    Sample,
    SpeedSamples,
)
from drlpp.io.formatting import seconds_text
from drlpp.schedule.method import Method

STRAIGHT_GOAL = 1.03
REPLICATED_GOAL = 1.08
PREDICTION_GOAL = 1.025
NUMERICS_GOAL = 1e-4

VANILLA, PIPEOPTIM = (Contender(ours=Method(policy=policy)) for policy in ASYNCHRONOUS[:2])


@dataclass(frozen=True)
class Row:
    """A contender in a case, over all of its samples.

    Attributes:
        case, contender: which.
        seconds: of each sample, by repetition.
        busiest_seconds: what the busiest worker computes in each sample, by repetition.
        batch_size: samples of an update.
    """

    case: Case
    contender: Contender
    seconds: tuple[float, ...]
    busiest_seconds: tuple[float, ...]
    batch_size: int

    @property
    def median_seconds(self) -> float:
        """Of an update."""
        return statistics.median(self.seconds)

    @property
    def samples_per_second(self) -> float:
        """By the median."""
        return self.batch_size / self.median_seconds

    @property
    def over_busiest(self) -> float:
        """Median of an update's time over what the busiest worker computes for it."""
        return _median_ratio(self.seconds, self.busiest_seconds)


@dataclass(frozen=True)
class Verdict:
    """A ratio and its goal.

    Attributes:
        question: what it is about.
        subject: which case, and who against whom.
        ratio: the median over repetitions.
        goal: that it may be at most, or at least.
        at_most: which of the two.
    """

    question: str
    subject: str
    ratio: float
    goal: float
    at_most: bool

    @property
    def met(self) -> bool:
        """Whether the goal is."""
        return self.ratio <= self.goal if self.at_most else self.ratio >= self.goal


def rows_of(document: SpeedSamples) -> list[Row]:
    """Return a row for every contender in every case, in the order in which they first ran."""
    grouped: dict[tuple[Case, Contender], list[Sample]] = {}
    for sample in document.samples:
        grouped.setdefault((sample.case, sample.contender), []).append(sample)
    rows = []
    for (case, contender), samples in grouped.items():
        samples.sort(key=lambda sample: sample.repetition)
        size = document.settings.models[case.model]["batch_size"]
        rows.append(
            Row(
                case,
                contender,
                tuple(sample.seconds for sample in samples),
                tuple(sample.busiest_seconds for sample in samples),
                int(size),
            )
        )
    return rows


def verdicts_of(rows: Sequence[Row]) -> Iterator[Verdict]:
    """Yield all ratios that have a goal."""
    known = {(row.case, row.contender): row for row in rows}
    for row in rows:
        if row.contender in (VANILLA, PIPEOPTIM, Contender(ours=DEEPER)):
            goal = STRAIGHT_GOAL if row.case.is_straight else REPLICATED_GOAL
            subject = f"{row.case}: {row.contender}"
            yield Verdict("over the busiest worker", subject, row.over_busiest, goal, at_most=True)
    beside = [(row, known[row.case, VANILLA]) for row in rows if (row.case, VANILLA) in known]
    for row, vanilla in beside:
        if row.contender == PIPEOPTIM:
            ratio = _median_ratio(row.seconds, vanilla.seconds)
            subject = f"{row.case}: {PIPEOPTIM} against {VANILLA}"
            yield Verdict("cost of predicting", subject, ratio, PREDICTION_GOAL, at_most=True)
    for row, vanilla in beside:
        if row.contender.flushes:
            ratio = _median_ratio(row.seconds, vanilla.seconds)
            microbatches, stages = row.contender.microbatches, len(row.case.blocks)
            goal = (microbatches + stages - 1) / microbatches
            subject = f"{row.case}: {VANILLA} against {row.contender}"
            yield Verdict("faster than flushing", subject, ratio, goal, at_most=False)


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median ratio of samples of one repetition: the machine's drift hits both alike."""
    return statistics.median(a / b for a, b in zip(above, below, strict=False))


def table_of(rows: Sequence[Row]) -> DataFrame:
    """Return what was measured, as text."""
    known = {(row.case, row.contender): row for row in rows}

    def texts(row: Row) -> dict[str, str]:
        vanilla = known.get((row.case, VANILLA))
        faster = _median_ratio(row.seconds, vanilla.seconds) if vanilla else None
        return {
            "case": str(row.case),
            "method": str(row.contender),
            "an update": seconds_text(row.median_seconds),
            "over the busiest": f"{row.over_busiest:.3f} ×",
            "samples/s": f"{row.samples_per_second:.1f}",
            "1f1b vanilla is faster by": "–"
            if faster is None or row is vanilla
            else f"{faster:.3f} ×",
        }

    return _said_once(DataFrame(map(texts, rows)))


def verdict_table(verdicts: Iterable[Verdict]) -> DataFrame:
    """Return every ratio with its goal, as text."""
    return _said_once(
        DataFrame(
            {
                "question": verdict.question,
                "where": verdict.subject,
                "ratio": f"{verdict.ratio:.3f}",
                "goal": f"{'≤' if verdict.at_most else '≥'} {verdict.goal:.3f}",
                "": "met" if verdict.met else "not met",
            }
            for verdict in verdicts
        )
    )


def _said_once(frame: DataFrame) -> DataFrame:
    """Remove what the first column repeats from the line above."""
    if len(frame):
        first = frame.iloc[:, 0]
        frame.isetitem(0, first.where(first != first.shift(), ""))
    return frame
