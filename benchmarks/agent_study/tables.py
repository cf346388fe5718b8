"""The tables of the study of agents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray
from scipy.stats import wilcoxon

from benchmarks.report import table

BEGIN = "<!-- study: written by benchmarks.agent_study -->"
END = "<!-- end of study -->"

OURS = "guided"
_LOOK_AT = 200
"""Measurements after which ours is to be within 1%."""


@dataclass(frozen=True)
class Result:
    """One run: the fastest after each budget; the optimum is the exact planner's, told everything.

    ``planner_seconds`` is what the best planner's placement takes, told what is declared.
    """

    question: str
    model: str
    accelerators: int
    bandwidth: float
    method: str
    seed: int
    distinct: int
    wall_seconds: float
    best_seconds: Sequence[float]
    optimum_seconds: float
    planner_seconds: float

    @property
    def instance(self) -> tuple[str, int, float]:
        """What does not depend on the method."""
        return self.model, self.accelerators, self.bandwidth


Runs = dict[str, dict[tuple[object, ...], Result]]
"""By method, then by instance and seed."""


def report(results: Sequence[Result], budgets: Sequence[int]) -> str:
    """All tables as Markdown."""
    best_known: dict[tuple[str, int, float], float] = {}
    for result in results:
        known = best_known.get(result.instance, numpy.inf)
        best_known[result.instance] = min(
            known, result.optimum_seconds, result.planner_seconds, *result.best_seconds
        )

    def gap(result: Result, index: int) -> float:
        return result.best_seconds[index] / best_known[result.instance] - 1

    def saved(result: Result, index: int) -> float:
        return result.planner_seconds / result.best_seconds[index] - 1

    parts: list[str] = []
    for question, title in (
        ("right", "What is declared is true: gap to the best known"),
        ("wrong", "Operator times and links are declared wrongly: gap to the best known"),
        ("noise", "The same, with shared cores that nobody declared, and 3% of noise"),
        ("ablation", "The guided agent without each of its parts, costs declared wrongly"),
    ):
        runs = _runs(r for r in results if r.question == question)
        if runs:
            shared = _of_all_methods(runs)
            parts += [f"**{title}**", "", *_gaps(shared, budgets, gap), ""]
            if shared != runs:
                more = {m: found for m, found in runs.items() if len(found) > len(shared[m])}
                parts += ["On all models, the large ones included:", ""]
                parts += [*_gaps(more, budgets, gap), ""]
            parts += [*_against_exact(runs, budgets), ""] if question == "right" else []
            parts += [*_comparison(runs, budgets, gap), ""]
        if question in ("wrong", "noise") and OURS in runs:
            parts += [
                "How much faster than the best planner's placement:",
                "",
                *_faster(runs, budgets, saved),
                "",
            ]
    return "\n".join(parts)


def _runs(results: Iterable[Result]) -> Runs:
    runs: Runs = defaultdict(dict)
    for result in results:
        runs[result.method][(*result.instance, result.seed)] = result
    return dict(runs)


def _of_all_methods(runs: Runs) -> Runs:
    """The instances and seeds that every method has run."""
    keys = set.intersection(*(set(found) for found in runs.values()))
    return {
        method: {key: found[key] for key in found if key in keys} for method, found in runs.items()
    }


def _gaps(runs: Runs, budgets: Sequence[int], gap: Callable[[Result, int], float]) -> Iterable[str]:
    rows = []
    for method, found in runs.items():
        cells = []
        for index in range(len(budgets)):
            gaps = [gap(result, index) for result in found.values()]
            cells.append(f"{numpy.median(gaps):.1%} / {max(gaps):.0%}")
        looked = budgets.index(_LOOK_AT)
        within = numpy.mean([gap(result, looked) <= 0.01 for result in found.values()])
        measured = numpy.median([result.distinct for result in found.values()])
        took = numpy.median([result.wall_seconds for result in found.values()])
        rows.append(
            [method, *cells, f"{within:.0%}", str(len(found)), f"{measured:.0f}", f"{took:.0f} s"]
        )
    headings = [
        "method",
        *(f"{budget}: median / worst" for budget in budgets),
        f"within 1% after {_LOOK_AT}",
        "runs",
        "measured",
        "took",
    ]
    return table(headings, rows)


def _against_exact(runs: Runs, budgets: Sequence[int]) -> Iterable[str]:
    """The gap to the exact planner's placement, which is told everything; negative is faster."""
    rows = []
    for method, found in runs.items():
        cells = []
        for index in range(len(budgets)):
            gaps = [r.best_seconds[index] / r.optimum_seconds - 1 for r in found.values()]
            cells.append(f"{numpy.median(gaps):+.1%} / {max(gaps):+.0%}")
        rows.append([method, *cells])
    return table(["to the exact planner's", *(f"{b}: median / worst" for b in budgets)], rows)


def _comparison(
    runs: Runs, budgets: Sequence[int], gap: Callable[[Result, int], float]
) -> Iterable[str]:
    """Ours against every other method, instance by instance, each the median over its seeds."""
    ours = runs.get(OURS, {})
    rows = []
    for method, found in runs.items():
        shared = set(ours) & set(found)
        if method == OURS or not shared:
            continue
        cells = []
        for index in range(len(budgets)):
            differences = _differences(ours, found, shared, lambda r: gap(r, index))  # noqa: B023
            better, worse = int((differences < 0).sum()), int((differences > 0).sum())
            equal = len(differences) - better - worse
            cells.append(f"{better} / {equal} / {worse}{_p(differences)}")
        rows.append([method, *cells])
    headings = [f"{OURS} against", *(f"{b}: better / equal / worse" for b in budgets)]
    return table(headings, rows)


def _differences(
    ours: dict[tuple[object, ...], Result],
    others: dict[tuple[object, ...], Result],
    shared: set[tuple[object, ...]],
    gap: Callable[[Result], float],
) -> NDArray[numpy.float64]:
    """Median over the seeds of an instance; seeds of one are not independent of each other."""
    by_instance: dict[object, list[float]] = defaultdict(list)
    for key in shared:
        by_instance[ours[key].instance].append(gap(ours[key]) - gap(others[key]))
    medians = numpy.array([numpy.median(values) for values in by_instance.values()])
    return numpy.where(numpy.abs(medians) < 1e-9, 0.0, medians)


def _p(differences: NDArray[numpy.float64]) -> str:
    """Of Wilcoxon's signed-rank test, one-sided: ours is not faster."""
    if not differences.any():
        return ""
    p = float(wilcoxon(differences[differences != 0], alternative="less").pvalue)
    return f", p = {p:.2g}"


def _faster(
    runs: Runs, budgets: Sequence[int], saved: Callable[[Result, int], float]
) -> Iterable[str]:
    rows = []
    for method, found in runs.items():
        cells = []
        for index in range(len(budgets)):
            values = [saved(result, index) for result in found.values()]
            slower = numpy.mean([value < -1e-9 for value in values])
            cells.append(f"{numpy.median(values):+.1%} (slower: {slower:.0%})")
        rows.append([method, *cells])
    return table(["method", *(f"{budget}" for budget in budgets)], rows)
