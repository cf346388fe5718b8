"""The tables of the study of agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pandas import DataFrame, Series
from scipy.stats import wilcoxon

from benchmarks.report import markdown
from drlpp.io.documents import Record

BEGIN = "<!-- study: written by benchmarks.agent_study -->"
END = "<!-- end of study -->"

OURS = "guided-policy"
_LOOK_AT = 200
"""Measurements after which ours is to be within 1%."""


class Task(Record):
    """One run: a method on a model, with accelerators and a link."""

    question: str
    model: str
    accelerators: int
    bandwidth: float
    method: str
    seed: int


class Result(Task):
    """The fastest after each budget; the optimum is the exact planner's with all costs known.

    ``planner_seconds`` is the time of the best planner's placement from what is declared.
    """

    distinct: int
    wall_seconds: float
    best_seconds: tuple[float, ...]
    optimum_seconds: float
    planner_seconds: float

    @property
    def task(self) -> Task:
        """What was run."""
        return Task(**{name: getattr(self, name) for name in Task.model_fields})


_INSTANCE = ["model", "accelerators", "bandwidth"]
_RUN = [*_INSTANCE, "seed"]


def report(results: Sequence[Result], budgets: Sequence[int]) -> str:
    """Return all tables as Markdown."""
    frame = DataFrame([result.model_dump() | {"budget": list(budgets)} for result in results])
    frame = frame.drop_duplicates(["question", "method", *_RUN], keep="last")
    # A line for every run and budget.
    frame = frame.explode(["best_seconds", "budget"]).astype({"best_seconds": float})
    fastest = frame[["best_seconds", "optimum_seconds", "planner_seconds"]].min(axis=1)
    best_known = fastest.groupby([frame[name] for name in _INSTANCE]).transform("min")
    frame["gap"] = frame.best_seconds / best_known - 1
    frame["gap_to_exact"] = frame.best_seconds / frame.optimum_seconds - 1
    frame["saved"] = frame.planner_seconds / frame.best_seconds - 1
    parts: list[str] = []
    for question, title in (
        ("right", "What is declared is true: gap to the best known"),
        ("wrong", "Operator times and links are declared wrongly: gap to the best known"),
        ("noise", "The same, with shared cores that nobody declared, and 3% of noise"),
        ("ablation", "The guided agent without each of its parts, costs declared wrongly"),
    ):
        runs = frame[frame.question == question]
        if len(runs):
            of_all = runs.groupby(_RUN).method.transform("nunique") == runs.method.nunique()
            parts += [f"**{title}**", "", _gaps(runs[of_all]), ""]
            if not of_all.all():
                more = runs[runs.method.isin(runs[~of_all].method)]
                parts += ["On all models, the large ones included:", "", _gaps(more), ""]
            parts += [_against_exact(runs), ""] if question == "right" else []
            methods = set(runs.method)
            parts += [_comparison(runs), ""] if OURS in methods and len(methods) > 1 else []
        if question in ("wrong", "noise") and OURS in set(runs.method):
            parts += ["How much faster than the best planner's placement:", "", _faster(runs), ""]
    return "\n".join(parts)


def _by_method(
    runs: DataFrame,
    heading: str,
    cells: Callable[[Series], str],
    value: str,
    at_budget: str = "",
) -> DataFrame:
    """Return a table with a line for every method and a cell for every budget."""
    return DataFrame(
        {heading: method}
        | {f"{budget}{at_budget}": cells(at[value]) for budget, at in found.groupby("budget")}
        for method, found in runs.groupby("method", sort=False)
    )


def _gaps(runs: DataFrame) -> str:
    table = _by_method(
        runs,
        "method",
        lambda gaps: f"{gaps.median():.1%} / {gaps.max():.0%}",
        "gap",
        ": median / worst",
    )
    looked = runs[runs.budget == _LOOK_AT].groupby("method", sort=False)
    within = [f"{(of_method.gap <= 0.01).mean():.0%}" for _, of_method in looked]
    table[f"within 1% after {_LOOK_AT}"] = within
    table["runs"] = [str(len(of_method)) for _, of_method in looked]
    table["measured"] = [f"{of_method.distinct.median():.0f}" for _, of_method in looked]
    table["took"] = [f"{of_method.wall_seconds.median():.0f} s" for _, of_method in looked]
    return markdown(table)


def _against_exact(runs: DataFrame) -> str:
    """Return the gap to the placement of the exact planner, which knows all costs.

    A negative gap is faster.
    """
    return markdown(
        _by_method(
            runs,
            "to the exact planner's",
            lambda gaps: f"{gaps.median():+.1%} / {gaps.max():+.0%}",
            "gap_to_exact",
            ": median / worst",
        )
    )


def _comparison(runs: DataFrame) -> str:
    """Compare ours with every other method by instance, each the median over its seeds.

    Seeds of one instance are not independent of each other.
    """
    ours = runs[runs.method == OURS]
    shared = runs[runs.method != OURS].merge(ours, on=[*_RUN, "budget"], suffixes=("", "_ours"))
    shared["difference"] = shared.gap_ours - shared.gap
    medians = shared.groupby(["method", *_INSTANCE, "budget"], sort=False)["difference"].median()
    return markdown(
        _by_method(
            medians.reset_index(),
            f"{OURS} against",
            _better_or_worse,
            "difference",
            ": better / equal / worse",
        )
    )


def _better_or_worse(differences: Series) -> str:
    """Count better, equal and worse, with p of Wilcoxon's signed-rank test.

    The test is one-sided; its null hypothesis is that ours is not faster.
    """
    different = differences[differences.abs() >= 1e-9]
    better, worse = (different < 0).sum(), (different > 0).sum()
    text = f"{better} / {len(differences) - len(different)} / {worse}"
    if not len(different):
        return text
    return f"{text}, p = {wilcoxon(different, alternative='less').pvalue:.2g}"


def _faster(runs: DataFrame) -> str:
    return markdown(
        _by_method(
            runs,
            "method",
            lambda saved: f"{saved.median():+.1%} (slower: {(saved < -1e-9).mean():.0%})",
            "saved",
        )
    )
