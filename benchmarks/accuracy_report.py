"""Predictions beside measurements: tables and a scatter plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from scipy.stats import pearsonr, spearmanr

from benchmarks.markdown_document import table, write_between
from drlpp.cli.tables import seconds_text

BEGIN = "<!-- accuracy: written by benchmarks/prediction_accuracy.py -->"
END = "<!-- end of accuracy -->"


@dataclass(frozen=True)
class Prediction:
    """A placement: seconds per minibatch as measured, simulated, and by the planners' rule."""

    model: str
    configuration: str
    branching: bool
    measured: float
    simulated: float
    by_rule: float

    @property
    def error(self) -> float:
        """Of the simulator, relative to what was measured; negative if it is too fast."""
        return self.simulated / self.measured - 1

    @property
    def rule_error(self) -> float:
        """Of the rule, likewise."""
        return self.by_rule / self.measured - 1


def accuracy_table(predictions: Sequence[Prediction]) -> RenderableType:
    """Every placement, then the summary of every model."""
    each = Table(box=SIMPLE_HEAD)
    for heading in ("model", "configuration", "branching"):
        each.add_column(heading)
    for heading in ("measured", "simulated", "error", "rule", "error of it"):
        each.add_column(heading, justify="right")
    for p in predictions:
        each.add_row(
            p.model,
            p.configuration,
            "yes" if p.branching else "",
            seconds_text(p.measured),
            seconds_text(p.simulated),
            f"{p.error:+.1%}",
            seconds_text(p.by_rule),
            f"{p.rule_error:+.1%}",
        )
    summary = Table(box=SIMPLE_HEAD)
    for heading in HEADINGS:
        summary.add_column(heading)
    for row in summary_rows(predictions):
        summary.add_row(*row)
    return Group(each, summary)


HEADINGS = (
    "model",
    "placements",
    "replicated",
    "branching",
    "median error",
    "worst",
    "correlation",
    "rank correlation",
    "median error of the rule",
)


def summary_rows(predictions: Sequence[Prediction]) -> Iterator[tuple[str, ...]]:
    """Errors and correlations of every model, and of all."""
    models = list(dict.fromkeys(p.model for p in predictions))
    groups = {model: [p for p in predictions if p.model == model] for model in models}
    if len(groups) > 1:
        groups["all"] = list(predictions)
    for name, group in groups.items():
        measured = [p.measured for p in group]
        simulated = [p.simulated for p in group]
        yield (
            name,
            str(len(group)),
            str(sum(set(p.configuration.split("-")) != {"1"} for p in group)),
            str(sum(p.branching for p in group)),
            f"{numpy.median([abs(p.error) for p in group]):.1%}",
            f"{max((p.error for p in group), key=abs):+.1%}",
            f"{pearsonr(measured, simulated).statistic:.3f}",
            f"{spearmanr(measured, simulated).statistic:.3f}",
            f"{numpy.median([abs(p.rule_error) for p in group]):.1%}",
        )


def draw_scatter(predictions: Sequence[Prediction], path: Path) -> None:
    """Simulated over measured seconds, a colour for each model."""
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


def write_accuracy(document: Path, predictions: Sequence[Prediction], figure: Path) -> None:
    """Put tables and figure between the marks in ``document``.

    Raises:
        InvalidInput: if it is not a file with both marks.
    """
    lines = table(HEADINGS, summary_rows(predictions))
    relative = figure.relative_to(document.parent)
    lines += ["", f"![Simulated over measured seconds per minibatch]({relative})", ""]
    rows = (
        (
            p.model,
            p.configuration,
            "yes" if p.branching else "",
            seconds_text(p.measured),
            seconds_text(p.simulated),
            f"{p.error:+.1%}",
            f"{p.rule_error:+.1%}",
        )
        for p in sorted(predictions, key=lambda p: (p.model, p.measured))
    )
    headings = ("model", "configuration", "branching", "measured", "simulated", "error", "rule")
    lines += ["<details><summary>Every placement</summary>", "", *table(headings, rows)]
    lines += ["", "</details>"]
    write_between(document, BEGIN, END, "\n".join(lines))
