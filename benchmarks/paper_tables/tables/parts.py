"""What the tables have in common: a section, and the cells of runs that learn."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pandas import DataFrame

from benchmarks.paper_tables.learning_study import LONGEST, Progress
from benchmarks.paper_tables.tables.claims import NOT_YET, Claim, claims_table, spread
from benchmarks.report import markdown


def section(title: str, tables: Sequence[tuple[str, DataFrame]], claims: Sequence[Claim]) -> str:
    """Return tables, each under what it shows, and the verdicts on claims."""
    parts = [f"### {title}\n"]
    for text, frame in tables:
        parts += [f"{text}\n", markdown(frame) if len(frame) else NOT_YET, ""]
    parts += ["What the paper says, and what shows here:\n"]
    return "\n".join([*parts, markdown(claims_table(claims)) if claims else NOT_YET, ""])


def target_text(progress: Progress) -> str:
    """Return the loss to reach."""
    return NOT_YET if progress.target is None else f"{progress.target:.3f}"


def quality_text(progress: Progress, method: str) -> str:
    """Return the loss after the study's minibatches, over seeds."""
    finals = progress.finals(method)
    losses = [final.loss for final in finals if math.isfinite(final.loss)]
    diverged = len(finals) - len(losses)
    text = spread(losses) if losses or not finals else "diverged"
    return f"{text} ({diverged} of {len(finals)} diverged)" if diverged and losses else text


def scores(progress: Progress, method: str) -> list[float]:
    """Return the score of every seed then, in %."""
    found = (final.at_plan().score for final in progress.finals(method))
    return [100 * score for score in found if score is not None]


def counted(progress: Progress, method: str) -> dict[int, float]:
    """Return the minibatches of each seed to the target; who is not there counts as at the end."""
    target = progress.target
    if target is None:
        return {}
    return {
        final.job.seed: final.minibatches_to(target) or LONGEST * progress.study.planned
        for final in progress.finals(method)
    }


def missed(progress: Progress, method: str) -> int:
    """Return how many seeds were not at the target."""
    target = progress.target
    if target is None:
        return 0
    return sum(final.minibatches_to(target) is None for final in progress.finals(method))


def reached_text(progress: Progress, method: str) -> str:
    """Return the minibatches to the loss, and how many seeds were not there."""
    minibatches = counted(progress, method)
    if not minibatches:
        return NOT_YET
    text, late = spread(list(minibatches.values()), 0), missed(progress, method)
    return f"{text} ({late} of {len(minibatches)} not there)" if late else text
