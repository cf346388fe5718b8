"""The study's results as Markdown."""

from __future__ import annotations

import statistics

from pandas import DataFrame

from benchmarks.report import markdown
from benchmarks.samples_to_loss.methods import BASELINE, METHODS
from benchmarks.samples_to_loss.search import LONGEST, MORE_SEEDS, Progress, Study
from benchmarks.samples_to_loss.tasks import TASKS

BEGIN = "<!-- results: written by benchmarks.samples_to_loss -->"
END = "<!-- end of results -->"


def section(progress: Progress) -> str:
    """Return the heading and the table of one study."""
    study = progress.study
    rate = "a decaying rate" if study.decays else "a constant rate"
    target = progress.target
    reached = "" if target is None else f" to the loss {target:.3f}"
    return "\n".join(
        [
            f"### {TASKS[study.task].title}, {rate}\n",
            f"Samples{reached}, relative to the {study.minibatches} minibatches of {BASELINE}; in "
            "brackets the best rate in thousandths, and the held-out loss after these minibatches "
            "(± standard deviation over three seeds).\n",
            markdown(_table(progress)),
            "",
        ]
    )


def _table(progress: Progress) -> DataFrame:
    study = progress.study
    return DataFrame(
        {
            "method": method,
            **{
                f"depth {depth}": cell(progress, method, None if METHODS[method].plain else depth)
                for depth in study.depths
            },
        }
        for method in dict.fromkeys(method for method, _ in study.rows)
    )


def cell(progress: Progress, method: str, depth: int | None) -> str:
    """Return what came out of a row, such as ``1.10 (2: 1.808 ± 0.021)``."""
    power, best = progress.best_power(method, depth), progress.result(method, depth)
    if power is None or best is None:
        return "–"
    if best.losses[-1] is None:
        return "diverged"
    others = [progress.result(method, depth, seed) for seed in MORE_SEEDS]
    losses = [best.final_loss, *(one.final_loss for one in others if one is not None)]
    loss = f"{statistics.mean(losses):.3f}"
    if len(losses) > 1:
        loss += f" ± {statistics.stdev(losses):.3f}"
    ratio = progress.samples_ratio(method, depth)
    text = f"{ratio:.2f}" if ratio is not None else f"> {LONGEST:g}"
    return f"{text} ({2.0**power:g}: {loss})"


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
