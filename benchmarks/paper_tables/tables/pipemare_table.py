"""PipeMare's Tables 2 and 3."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pandas import DataFrame

from benchmarks.paper_tables import pipemare
from benchmarks.paper_tables.learning import TASKS, Learned
from benchmarks.paper_tables.learning_study import Progress
from benchmarks.paper_tables.tables.claims import NOT_YET, Claim, judged, judged_seconds, spread
from benchmarks.paper_tables.tables.papers import PIPEMARE_TABLES_2_AND_3
from benchmarks.paper_tables.tables.parts import (
    counted,
    missed,
    quality_text,
    reached_text,
    scores,
    section,
    target_text,
)


def pipemare_section(learned: Sequence[Learned]) -> str:
    """Return Tables 2 and 3."""
    ours, claims = [], []
    for study in pipemare.studies(short=False):
        progress = Progress(study, learned)
        ours.append((_pipemare_title(progress), _pipemare_table(progress)))
        claims += _pipemare_claims(progress)
    ours.append(("The paper's Tables 2 and 3:", PIPEMARE_TABLES_2_AND_3))
    return section("PipeMare: Tables 2 and 3", ours, claims)


def _pipemare_title(progress: Progress) -> str:
    study = progress.study
    return (
        f"{TASKS[study.task].title}, {study.stages} stages; every method at its own best rate; "
        f"after {study.planned} minibatches, and to the loss {target_text(progress)}. "
        "Utilisation and time are those of the schedule with passes of one length, GPipe's with "
        f"N = {pipemare.MICROBATCHES}; a minibatch of a pipeline that never waits takes 1:"
    )


def _pipemare_table(progress: Progress) -> DataFrame:
    study, rows = progress.study, []
    for method in study.methods:
        row, times = study.row(method), list(_times(progress, method).values())
        done = sum(counted(progress, method).values())
        memory = pipemare.weight_memory(study.task, row, study.stages)
        scored = study.task == "digits"
        rows.append(
            {
                "method": method,
                "held-out loss": quality_text(progress, method),
                "accuracy in %": spread(scores(progress, method), 1) if scored else "–",
                "minibatches to the loss": reached_text(progress, method),
                "utilisation": f"{done / sum(times):.0%}" if times else NOT_YET,
                "time to the loss": spread(times, 0),
                "weights and optimizer": f"{memory:.2f}×",
            }
        )
    return DataFrame(rows)


def _pipemare_claims(progress: Progress) -> list[Claim]:
    where = TASKS[progress.study.task].title

    def quality(method: str) -> dict[int, float]:
        return {f.job.seed: -f.loss for f in progress.finals(method) if math.isfinite(f.loss)}

    gpipe = quality("GPipe")
    noise = statistics.stdev(gpipe.values()) if len(gpipe) > 1 else 0.0
    alike = [
        judged(f"{method} ends as good as GPipe", where, quality(method), gpipe, noise)
        for method in ("T1", "T1+T2", "T1+T2+W", "PipeDream")
    ]
    better = [
        judged(f"{first} ends better than {second}", where, quality(first), quality(second))
        for first, second in (
            ("T1", "neither"),
            ("T1", "T2"),
            ("T1+T2", "T1"),
            ("T1+T2+W", "T1+T2"),
            ("T1+T2", "PipeDream"),
        )
    ]
    sooner = [
        judged_seconds(
            f"{method} is there sooner than GPipe",
            where,
            _times(progress, method),
            _times(progress, "GPipe"),
            first_is_least=missed(progress, method) > 0,
        )
        for method in ("T1", "T1+T2", "T1+T2+W")
    ]
    return [*alike, *better, *sooner]


def _times(progress: Progress, method: str) -> dict[int, float]:
    """Return the time to the loss of each seed, over that of a stage's minibatch."""
    study, row = progress.study, progress.study.row(method)
    return {
        seed: done * pipemare.time_factor(row, study.stages, done)
        for seed, done in counted(progress, method).items()
    }
