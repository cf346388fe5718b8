"""The study's results as Markdown: every mean with its deviation, and the paper's orderings."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pandas import DataFrame

from benchmarks.learning.comparisons import Comparison, compare, tally
from benchmarks.report import markdown
from benchmarks.statistical_efficiency.methods import METHODS
from benchmarks.statistical_efficiency.orderings import (
    ORDERINGS,
    TABLE_IV,
    TABLE_IV_METHODS,
    Ordering,
)
from benchmarks.statistical_efficiency.runs import DEPTHS, OPTIONS, SEARCH_SEED, Result
from benchmarks.statistical_efficiency.tasks import TASKS

BEGIN = "<!-- results: written by benchmarks.statistical_efficiency -->"
END = "<!-- end of results -->"

OPTIMIZER_TITLES: dict[str, str] = {"sgd": "SGDM", "adam": "Adam", "adamw": "AdamW"}

Cell = tuple[str, str, str, int]
"""Task, optimizer, method, depth."""


def report(results: Iterable[Result]) -> str:
    """Return all sections of the report.

    Args:
        results: of the study's jobs, and those of the search for learning rates.
    """
    known = list(results)
    studied = by_cell(result for result in known if result.job.seed != SEARCH_SEED)
    return "\n".join(
        [
            "### After training\n",
            markdown(_results_table(studied)),
            "\n### The paper's Table IV\n",
            markdown(_table_iv()),
            "\n### The paper's orderings\n",
            markdown(_orderings_table(studied)),
            "\n### Learning rates\n",
            markdown(_search_table([r for r in known if r.job.seed == SEARCH_SEED])),
            "",
        ]
    )


def by_cell(results: Iterable[Result]) -> dict[Cell, dict[int, Result]]:
    """Return results of every seed; those that depth does not concern stand at every depth."""
    cells: defaultdict[Cell, dict[int, Result]] = defaultdict(dict)
    for result in results:
        job = result.job
        for depth in DEPTHS if job.depth is None else (job.depth,):
            cells[job.task, job.optimizer, job.method, depth][job.seed] = result
    return dict(cells)


def score(result: Result) -> float:
    """Return the score that methods are compared by: accuracy in %, or the loss negated.

    More is better.

    A language model that diverged counts as one that guesses.
    """
    if result.accuracy is not None:
        return 100 * result.accuracy
    if result.loss is None or result.diverged:
        return -TASKS[result.job.task].guessing_loss
    return -result.loss


def summary(results: Sequence[Result]) -> str:
    """Return mean ± standard deviation over seeds, and how many runs diverged.

    Accuracies are averaged over all runs, losses over those that did not diverge.
    """
    if not results:
        return "–"
    diverged = sum(result.diverged for result in results)
    counted = [abs(score(r)) for r in results if r.accuracy is not None or not r.diverged]
    if not counted:
        return f"diverged ({diverged} of {len(results)})"
    digits = 2 if results[0].accuracy is not None else 3
    text = f"{statistics.mean(counted):.{digits}f}"
    if len(counted) > 1:
        text += f" ± {statistics.stdev(counted):.{digits}f}"
    return text + (f" ({diverged} of {len(results)} diverged)" if diverged else "")


def comparison_of(
    ordering: Ordering, task: str, depth: int, cells: Mapping[Cell, Mapping[int, Result]]
) -> Comparison | None:
    """Judge an ordering on one task and depth; return None without results.

    Two methods are alike if they differ by less than GPipe's standard deviation over seeds, which
    is what chance makes out of one and the same method.
    """
    first, second, baseline = (
        {
            seed: score(result)
            for seed, result in cells.get((task, ordering.optimizer, method, depth), {}).items()
        }
        for method in (ordering.first, ordering.second, "GPipe")
    )
    if not ordering.alike:
        return compare(first, second)
    if len(baseline) < 2:
        return None
    return compare(first, second, alike_within=statistics.stdev(baseline.values()))


def _results_table(cells: Mapping[Cell, Mapping[int, Result]]) -> DataFrame:
    return DataFrame(
        {
            "task": task.title,
            "optimizer": OPTIMIZER_TITLES[optimizer],
            "stages": str(depth),
            **{
                method: summary(list(cells.get((name, optimizer, method, depth), {}).values()))
                for method in METHODS
            },
        }
        for name, task in TASKS.items()
        for optimizer in OPTIONS
        for depth in DEPTHS
    )


def _table_iv() -> DataFrame:
    return DataFrame(
        [
            [optimizer, model, *("–" if value is None else f"{value:.2f}" for value in values)]
            for optimizer, model, values in TABLE_IV
        ],
        columns=["optimizer", "model, data", *TABLE_IV_METHODS],
    )


def _orderings_table(cells: Mapping[Cell, Mapping[int, Result]]) -> DataFrame:
    rows = []
    for ordering in ORDERINGS:
        found = {
            f"{task}, {depth}": comparison_of(ordering, task, depth, cells)
            for task in TASKS
            for depth in DEPTHS
        }
        rows.append(
            {
                "statement": ordering.text,
                **{place: _comparison_text(comparison) for place, comparison in found.items()},
                "in all": tally([one for one in found.values() if one is not None]),
            }
        )
    return DataFrame(rows)


def _comparison_text(comparison: Comparison | None) -> str:
    if comparison is None:
        return "–"
    return f"{comparison.verdict} ({comparison.mean:+.3f} ± {comparison.standard_error:.3f})"


def _search_table(results: Sequence[Result]) -> DataFrame:
    ordered = sorted(
        results,
        key=lambda r: (r.job.task, list(OPTIONS).index(r.job.optimizer), r.job.learning_rate),
    )
    return DataFrame(
        [
            [
                TASKS[result.job.task].title,
                OPTIMIZER_TITLES[result.job.optimizer],
                f"{result.job.learning_rate:g}",
                "diverged" if result.diverged or result.loss is None else f"{result.loss:.4f}",
                "" if result.accuracy is None else f"{100 * result.accuracy:.2f}",
            ]
            for result in ordered
        ],
        columns=["task", "optimizer", "rate", "held-out loss", "accuracy in %"],
    )
