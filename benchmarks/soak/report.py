"""What the samples of a soak say: the beginning, the end, and whatever grew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from pandas import DataFrame
from rich.filesize import decimal

from benchmarks.processes import ProcessFacts
from drlpp.io.formatting import seconds_text

MOST_GROWTH_OF_MEMORY = 0.05
MOST_GROWTH_OF_TIME = 0.10
_LEAST_SAMPLES_OF_A_GENERATION = 6
"""Fewer tell nothing about the memory of workers that were started anew."""


@dataclass(frozen=True)
class TurnSpeed:
    """How fast one training was; processor seconds are all workers', with checkpoints."""

    placement: str
    minibatches_per_second: float
    processor_seconds_per_minibatch: float


@dataclass(frozen=True)
class Sample:
    """Everything at one moment.

    Attributes:
        hours: since the beginning.
        turns: trainings so far.
        generation: of workers; a new one begins when a worker was killed.
        controller, workers: the processes.
        servers: the process that forks workers and its helper, together.
        session_files: in the session's folder and next to it.
        shared_memory_files: in ``/dev/shm``, those of other programs as well.
        speeds: of the trainings since the last sample.
        failures: why trainings and measurements failed since the last sample.
        kills: workers that the soak has killed since the last sample.
    """

    hours: float
    turns: int
    generation: int
    controller: ProcessFacts
    servers: ProcessFacts
    workers: list[ProcessFacts]
    session_files: int
    shared_memory_files: int
    speeds: list[TurnSpeed]
    failures: list[str]
    kills: int


@dataclass(frozen=True)
class Row:
    """A figure at the beginning and at the end; ``most_growth`` is None where it is not judged."""

    name: str
    start: float
    end: float
    most_growth: float | None
    text: Callable[[float], str]

    @property
    def growth(self) -> float:
        """Relative to the beginning; of nothing, all that came."""
        return (self.end - self.start) / max(self.start, 1e-9)

    @property
    def grew(self) -> bool:
        """More than is allowed."""
        return self.most_growth is not None and self.growth > self.most_growth


def rows_of(samples: Sequence[Sample]) -> list[Row]:
    """Return medians of the first third of the samples, and of the last third.

    Workers' memory is compared within each generation, of which the one that grew most is reported.
    """
    third = max(1, len(samples) // 3)
    first, last = samples[:third], samples[-third:]

    def row(
        name: str,
        most_growth: float | None,
        text: Callable[[float], str],
        value: Callable[[Sample], float],
    ) -> Row:
        return Row(name, median(map(value, first)), median(map(value, last)), most_growth, text)

    rows = [
        row(
            "controller: memory", MOST_GROWTH_OF_MEMORY, _bytes, lambda s: s.controller.memory_bytes
        ),
        row("controller: open files", 0, _count, lambda s: s.controller.open_files),
        row("controller: threads", 0, _count, lambda s: s.controller.threads),
        row("fork server: memory", MOST_GROWTH_OF_MEMORY, _bytes, lambda s: s.servers.memory_bytes),
        row("fork server: open files", 0, _count, lambda s: s.servers.open_files),
        row("workers: open files", 0, _count, lambda s: max(w.open_files for w in s.workers)),
        row("workers: threads", 0, _count, lambda s: max(w.threads for w in s.workers)),
        row("files of the session", 0, _count, lambda s: s.session_files),
        row("files in /dev/shm", None, _count, lambda s: s.shared_memory_files),
    ]
    rows += _worker_memory(samples)
    for placement in sorted({speed.placement for sample in samples for speed in sample.speeds}):
        of_first, of_last = _speeds(first, placement), _speeds(last, placement)
        if of_first and of_last:
            rows += [
                Row(
                    f"{placement}: minibatches per second",
                    median(speed.minibatches_per_second for speed in of_first),
                    median(speed.minibatches_per_second for speed in of_last),
                    None,
                    lambda value: f"{value:.2f}",
                ),
                Row(
                    f"{placement}: processor time per minibatch",
                    median(speed.processor_seconds_per_minibatch for speed in of_first),
                    median(speed.processor_seconds_per_minibatch for speed in of_last),
                    MOST_GROWTH_OF_TIME,
                    seconds_text,
                ),
            ]
    return rows


def _worker_memory(samples: Sequence[Sample]) -> list[Row]:
    """Return the worker whose memory grew most, of each generation that lived long enough."""
    rows = []
    for generation, grouped in groupby(samples, key=lambda sample: sample.generation):
        of_one = list(grouped)
        if len(of_one) < _LEAST_SAMPLES_OF_A_GENERATION:
            continue
        third = len(of_one) // 3
        of_workers = [
            Row(
                f"worker {worker} of generation {generation}: memory",
                median(sample.workers[worker].memory_bytes for sample in of_one[:third]),
                median(sample.workers[worker].memory_bytes for sample in of_one[-third:]),
                MOST_GROWTH_OF_MEMORY,
                _bytes,
            )
            for worker in range(len(of_one[0].workers))
        ]
        rows.append(max(of_workers, key=lambda row: row.growth))
    return rows


def _speeds(samples: Sequence[Sample], placement: str) -> list[TurnSpeed]:
    return [s for sample in samples for s in sample.speeds if s.placement == placement]


def table_of(samples: Sequence[Sample]) -> DataFrame:
    """Return the beginning and the end, side by side as text."""
    return DataFrame(
        {
            "": row.name,
            "start": row.text(row.start),
            "end": row.text(row.end),
            "growth": f"{row.growth:+.1%}",
            "allowed": "–" if row.most_growth is None else f"{row.most_growth:.0%}",
        }
        for row in rows_of(samples)
    )


def findings_of(samples: Sequence[Sample]) -> list[str]:
    """Return a sentence for all that grew more than is allowed, or failed without a kill."""
    grown = [
        f"{row.name}: from {row.text(row.start)} to {row.text(row.end)}"
        for row in rows_of(samples)
        if row.grew
    ]
    failures = [failure for sample in samples for failure in sample.failures]
    others = [f"failed: {failure}" for failure in failures if not _was_killed(failure)]
    return [*grown, *others, *_findings_of_kills(samples)]


def _findings_of_kills(samples: Sequence[Sample]) -> list[str]:
    """Return a complaint unless as many kills are reported as were made.

    Other programs kill too, such as the kernel when memory is short.
    """
    made = sum(sample.kills for sample in samples)
    told = sum(_was_killed(failure) for sample in samples for failure in sample.failures)
    if not made:
        return ["no worker was killed, so nothing is known of what a kill leaves behind"]
    return [] if made == told else [f"failures by SIGKILL: {told}, workers killed: {made}"]


def _was_killed(failure: str) -> bool:
    return "was killed by SIGKILL" in failure


def _bytes(value: float) -> str:
    return decimal(int(value))


def _count(value: float) -> str:
    return f"{value:g}"
