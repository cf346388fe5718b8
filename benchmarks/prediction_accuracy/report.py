"""Predictions and measurements: tables and a scatter plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from pandas import DataFrame

from benchmarks.report import markdown, write_between
from drlpp.io.documents import Record
from drlpp.io.formatting import seconds_text

BEGIN = "<!-- accuracy: written by benchmarks.prediction_accuracy -->"
END = "<!-- end of accuracy -->"


class Prediction(Record):
    """A placement: seconds per minibatch as measured, simulated, and by the planners' rule.

    ``alone`` is simulated without what short runs said; ``spread`` is the error bar that is printed
    with ``simulated``, relative.
    """

    model: str
    configuration: str
    branching: bool
    measured: float
    simulated: float
    alone: float
    by_rule: float
    spread: float

    @property
    def error(self) -> float:
        """Of the simulator, relative to what was measured; negative if it is too fast."""
        return self.simulated / self.measured - 1

    @property
    def alone_error(self) -> float:
        """Without short runs, relative to what was measured; negative if it is too fast."""
        return self.alone / self.measured - 1

    @property
    def rule_error(self) -> float:
        """Of the rule, relative to what was measured; negative if it is too fast."""
        return self.by_rule / self.measured - 1


def each(predictions: Sequence[Prediction]) -> DataFrame:
    """Return a table of every placement."""
    return DataFrame(
        {
            "model": p.model,
            "configuration": p.configuration,
            "branching": "yes" if p.branching else "",
            "measured": seconds_text(p.measured),
            "simulated": seconds_text(p.simulated),
            "error": f"{p.error:+.1%}",
            "error bar": f"± {p.spread:.1%}",
            "error of operators alone": f"{p.alone_error:+.1%}",
            "rule": seconds_text(p.by_rule),
            "error of it": f"{p.rule_error:+.1%}",
        }
        for p in predictions
    )


def summary(predictions: Sequence[Prediction]) -> DataFrame:
    """Return errors and correlations of every model, and of all."""
    found = DataFrame([prediction.model_dump() for prediction in predictions])
    found["error"] = found.simulated / found.measured - 1
    found["alone_error"] = found.alone / found.measured - 1
    found["rule_error"] = found.by_rule / found.measured - 1
    found["within"] = found.error.abs() <= 2 * found.spread
    groups = dict(iter(found.groupby("model", sort=False)))
    if len(groups) > 1:
        groups["all"] = found
    return DataFrame(
        {
            "model": name,
            "placements": str(len(group)),
            "replicated": str(sum(set(c.split("-")) != {"1"} for c in group.configuration)),
            "branching": str(group.branching.sum()),
            "median error": f"{group.error.abs().median():.1%}",
            "operators alone": f"{group.alone_error.abs().median():.1%}",
            "within two error bars": f"{group.within.mean():.0%}",
            "worst": f"{max(group.error, key=abs):+.1%}",
            "correlation": f"{group.measured.corr(group.simulated):.3f}",
            "rank correlation": f"{group.measured.corr(group.simulated, 'spearman'):.3f}",
            "median error of the rule": f"{group.rule_error.abs().median():.1%}",
        }
        for name, group in groups.items()
    )


def draw_scatter(predictions: Sequence[Prediction], path: Path) -> None:
    """Draw simulated over measured seconds, with a colour for each model."""
    figure = Figure(figsize=(6, 5.2), layout="constrained")
    axes = figure.subplots()
    for number, model in enumerate(dict.fromkeys(p.model for p in predictions)):
        group = [p for p in predictions if p.model == model]
        for branching, marker in ((False, "o"), (True, "^")):
            points = [p for p in group if p.branching == branching]
            axes.scatter(
                [1e3 * p.measured for p in points],
                [1e3 * p.simulated for p in points],
                color=f"C{number}",
                marker=marker,
                s=22,
                label=None if branching else model,
            )
    both = [1e3 * value for p in predictions for value in (p.measured, p.simulated)]
    ends = [0.9 * min(both), 1.1 * max(both)]
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.fill_between(
        ends, [0.95 * e for e in ends], [1.05 * e for e in ends], color="grey", alpha=0.2
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="measured milliseconds per minibatch",
        ylabel="simulated (band: ±5%; triangles: branching)",
    )
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def write_accuracy(document: Path, predictions: Sequence[Prediction]) -> None:
    """Put tables between the marks in ``document``.

    Raises:
        InvalidInput: if it is not a file with both marks.
    """
    ordered = sorted(predictions, key=lambda p: (p.model, p.measured))
    placements = each(ordered).drop(columns="rule").rename(columns={"error of it": "rule"})
    parts = (
        markdown(summary(predictions)),
        "<details><summary>Every placement</summary>",
        markdown(placements),
        "</details>",
    )
    write_between(document, BEGIN, END, "\n\n".join(parts))
