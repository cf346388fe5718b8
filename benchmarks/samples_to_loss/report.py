"""The study's results as Markdown."""

from __future__ import annotations

import math
import statistics

from pandas import DataFrame

from benchmarks.learning.samples_needed import SamplesNeeded
from benchmarks.report import markdown
from benchmarks.samples_to_loss.methods import BASELINE, METHODS
from benchmarks.samples_to_loss.search import LONGEST, MORE_SEEDS, Progress, Study
from benchmarks.samples_to_loss.tasks import TASKS

BEGIN = "<!-- results: written by benchmarks.samples_to_loss -->"
END = "<!-- end of results -->"


def section(progress: Progress) -> str:
    """Return the heading and the tables of one study."""
    study = progress.study
    rate = "a decaying rate" if study.decays else "a constant rate"
    target, power = progress.target(), progress.target_power
    reached = "" if target is None else f" (with seed 0: {target:.3f})"
    parts = [
        f"### {TASKS[study.task].title}, {rate}\n",
        f"Samples to the loss of {BASELINE} after {study.minibatches} minibatches{reached}, "
        "relative to these; in brackets the best rate in thousandths, and the held-out loss after "
        "as many minibatches. With ±, mean and standard deviation over three seeds.\n",
        markdown(_table(progress, None)),
        "",
    ]
    if power is not None:
        parts += [
            f"The same at {2.0**power:g} thousandths, where {BASELINE} ends best:\n",
            markdown(_table(progress, power)),
            "",
        ]
    return "\n".join(parts)


def _table(progress: Progress, power: int | None) -> DataFrame:
    study = progress.study
    methods = dict.fromkeys(method for method, _ in study.rows)
    return DataFrame(
        {
            "method": method,
            **{
                f"depth {depth}": cell(
                    progress, method, None if METHODS[method].plain else depth, power
                )
                for depth in study.depths
            },
        }
        for method in methods
        if power is None or METHODS[method].keeps_rate_of_plain
    )


def cell(progress: Progress, method: str, depth: int | None, power: int | None = None) -> str:
    """Return what came out of a row, such as ``1.10 ± 0.03 (2: 1.808 ± 0.021)``.

    Args:
        progress: what is known.
        method, depth: the row.
        power: of a rate, which is then not shown; by default that of its best.
    """
    used = progress.best_power(method, depth) if power is None else power
    if used is None or (first := progress.result(method, depth, power=used)) is None:
        return "–"
    if math.isinf(first.final_loss):
        return "diverged"
    runs = (progress.result(method, depth, seed, used) for seed in (0, *MORE_SEEDS))
    found = [run.final_loss for run in runs if run is not None]
    ratios = progress.ratios(method, depth, used)
    reached = [ratio for ratio in ratios if ratio is not None]
    if not ratios:
        text = "not run"
    elif len(reached) == len(ratios):
        text = _mean(reached, 2)
    else:
        text = f"> {LONGEST:g}" + (f" ({len(reached)} of {len(ratios)} less)" if reached else "")
    loss = _mean(found, 3)
    return f"{text} ({2.0**used:g}: {loss})" if power is None else f"{text} ({loss})"


def _mean(values: list[float], digits: int) -> str:
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def samples_needed(progress: Progress) -> list[SamplesNeeded]:
    """Return what is known of every method, at its own best rate; plain training's depth is 1."""
    study, target = progress.study, progress.target()
    if target is None:
        return []
    found = []
    for method, depth in study.rows:
        if progress.result(method, depth) is not None:
            ratio, deviation = progress.mean_ratio(method, depth) or (None, 0.0)
            found.append(
                SamplesNeeded(
                    task=study.task,
                    method=method,
                    depth=depth or 1,
                    target=target,
                    minibatches=study.minibatches,
                    ratio=ratio,
                    deviation=deviation,
                )
            )
    return found


def studies(
    tasks: list[str],
    rates: list[str],
    depths: list[int],
    methods: list[str],
    minibatches: int | None,
) -> list[Study]:
    """Return the studies of these tasks with these kinds of learning rates."""
    return [
        Study(task, rate == "decaying", minibatches or TASKS[task].minibatches, depths, methods)
        for task in tasks
        for rate in rates
    ]
