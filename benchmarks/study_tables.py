"""The tables of the study of agents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy
from scipy.stats import wilcoxon

from benchmarks.markdown_document import table

BEGIN = "<!-- study: written by benchmarks/agent_study.py -->"
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
        ("ablation", "The guided agent without each of its parts, costs declared wrongly"),
    ):
        runs = _runs(r for r in results if r.question == question)
        if runs:
            parts += [f"**{title}**", "", *_gaps(runs, budgets, gap), ""]
            parts += [*_against_exact(runs, budgets), ""] if question == "right" else []
            parts += [*_comparison(runs, budgets, gap), ""]
        if question == "wrong" and OURS in runs:
            parts += [
                "**The same: how much faster than the best planner's placement**",
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
    """Ours against every other method on the same instances and seeds (Wilcoxon, one-sided)."""
    ours = runs.get(OURS, {})
    rows = []
    for method, found in runs.items():
        shared = sorted(set(ours) & set(found))
        if method == OURS or not shared:
            continue
        cells = []
        for index in range(len(budgets)):
            mine = numpy.array([gap(ours[key], index) for key in shared])
            others = numpy.array([gap(found[key], index) for key in shared])
            better = int((mine < others - 1e-9).sum())
            worse = int((mine > others + 1e-9).sum())
            cells.append(f"{better} / {len(shared) - better - worse} / {worse}{_p(mine, others)}")
        rows.append([method, *cells])
    headings = [f"{OURS} against", *(f"{b}: better / equal / worse" for b in budgets)]
    return table(headings, rows)


def _p(ours: numpy.ndarray, others: numpy.ndarray) -> str:
    differences = ours - others
    if numpy.all(numpy.abs(differences) < 1e-9):
        return ""
    p = float(wilcoxon(ours, others, alternative="less").pvalue)
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
