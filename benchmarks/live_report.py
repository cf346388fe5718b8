"""The live table as text: seconds per minibatch beside the paper's, and configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from benchmarks.markdown_document import table, write_between
from drlpp.cli.tables import confidence_text, seconds_text
from drlpp.comparison.verdict import Finding, best_rival
from drlpp.runtime import PLAIN, Comparison, Contender

BEGIN = "<!-- live table: written by benchmarks/live_table.py -->"
END = "<!-- end of live table -->"

AGENT = "agent"
"""Stands for whichever agent it was."""

METHODS = {
    PLAIN: "plain",
    "data-parallel": "DP",
    "gpipe": "GPipe",
    "1f1b-flush": "flushed",
    "pipedream": "PipeDream",
    "exact": "exact",
    AGENT: "agent",
}
"""Columns, by who found it; plain is PyTorch in one process, flushed is flushed 1F1B."""


@dataclass(frozen=True)
class PaperRow:
    """drl-pp Table 1 and its analysis: seconds by method, and the configuration of DRL-PP's."""

    model: str
    seconds: dict[str, float]
    configuration: str


def _paper_row(
    model: str, configuration: str, dp: float, gpipe: float, pipedream: float, drl_pp: float
) -> PaperRow:
    seconds = {"data-parallel": dp, "gpipe": gpipe, "pipedream": pipedream, AGENT: drl_pp}
    return PaperRow(model, seconds, configuration)


PAPER = {
    "resnet50": _paper_row("ResNet-50", "4 (DP)", 0.051, 0.158, 0.051, 0.051),
    "vgg16": _paper_row("VGG-16", "3-1", 0.165, 0.193, 0.107, 0.082),
    "alexnet": _paper_row("AlexNet", "3-1", 0.057, 0.068, 0.012, 0.010),
    "resnext50": _paper_row("ResNeXt-101", "3-1", 0.125, 0.297, 0.125, 0.116),
    "gnmt4": _paper_row("GNMT-4", "1-1-1-1", 1.082, 1.141, 0.841, 0.689),
}
"""Of our models; the paper's ResNeXt is larger than ours."""


@dataclass(frozen=True)
class Cell:
    """One method on one model: its configuration, and its median unless it failed."""

    configuration: str
    seconds: float | None


@dataclass(frozen=True)
class LiveRow:
    """One model.

    Attributes:
        model: its name in the zoo.
        cells: by method.
        over_best: the agent's speed-up over the best rival.
        verdict: who is the fastest, if the difference is worth having, and how sure that is.
    """

    model: str
    cells: dict[str, Cell]
    over_best: float | None
    verdict: str

    def over(self, method: str) -> float | None:
        """The agent's speed-up over a method."""
        mine, other = self.cells[AGENT].seconds, self.cells[method].seconds
        return None if mine is None or other is None else other / mine


def live_row(model: str, comparison: Comparison, agent: str) -> LiveRow:
    """A row from a comparison; of the agent's placements the one that came furthest."""
    cells = {}
    for method in METHODS:
        name = agent if method == AGENT else method
        found = [c for c in comparison.contenders if c.found_by == name]
        best = min(found, key=_by_result, default=None)
        cells[method] = Cell(best.configuration, _median(best)) if best else Cell("–", None)
    rival, mine = best_rival(comparison.entrants), cells[AGENT].seconds
    return LiveRow(
        model=model,
        cells=cells,
        over_best=None
        if rival is None or mine is None
        else median(comparison.entrants[rival].seconds) / mine,
        verdict=_verdict(comparison),
    )


def _verdict(comparison: Comparison) -> str:
    verdict = comparison.verdict
    if verdict is None:
        return "–"
    names = comparison.entrants[verdict.fastest].found_by
    who = " and ".join(METHODS.get(name, AGENT) for name in names)
    if verdict.finding is Finding.EQUAL:
        who = "no difference"
    return who if verdict.lead is None else f"{who}, {confidence_text(verdict.lead.probability)}"


def _by_result(contender: Contender) -> tuple[int, float]:
    seconds = contender.seconds
    return -len(seconds), median(seconds) if seconds else 0.0


def _median(contender: Contender) -> float | None:
    return median(contender.seconds) if contender.seconds else None


HEADINGS = ("model", *METHODS.values())


def seconds_rows(rows: Sequence[LiveRow]) -> list[list[str]]:
    """Seconds per minibatch."""
    return [
        [row.model, *(_seconds(row.cells[method].seconds) for method in METHODS)] for row in rows
    ]


RATIO_HEADINGS = ("model", "best rival", "DP", "PipeDream", "exact", "verdict, confidence")


def ratio_rows(rows: Sequence[LiveRow]) -> list[list[str]]:
    """What the agent's placement is faster by, and whether that is worth having."""
    return [
        [
            row.model,
            _ratio(row.over_best),
            *(_ratio(row.over(method)) for method in ("data-parallel", "pipedream", "exact")),
            row.verdict,
        ]
        for row in rows
    ]


CONFIGURATION_HEADINGS = ("model", *METHODS.values(), "paper's")


def configuration_rows(rows: Sequence[LiveRow]) -> list[list[str]]:
    """Replicas per stage of every method's placement, and of DRL-PP's in the paper."""
    return [
        [
            row.model,
            *(row.cells[method].configuration for method in METHODS),
            PAPER[row.model].configuration if row.model in PAPER else "–",
        ]
        for row in rows
    ]


PAPER_HEADINGS = ("model", "DP", "GPipe", "PipeDream", "DRL-PP", "over DP", "over PipeDream")


def paper_rows(rows: Sequence[LiveRow]) -> list[list[str]]:
    """drl-pp Table 1, of the models in ``rows``: seconds on the paper's four GPUs."""
    found = [PAPER[row.model] for row in rows if row.model in PAPER]
    return [
        [
            paper.model,
            *(f"{seconds:.3f}" for seconds in paper.seconds.values()),
            *(
                f"{paper.seconds[method] / paper.seconds[AGENT]:.2f}×"
                for method in ("data-parallel", "pipedream")
            ),
        ]
        for paper in found
    ]


def _seconds(seconds: float | None) -> str:
    return "failed" if seconds is None else seconds_text(seconds)


def _ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


def live_tables(rows: Sequence[LiveRow], title: str) -> Group:
    """All tables for a terminal."""
    tables = []
    for name, headings, cells in _tables(rows):
        shown = Table(title=name, title_justify="left", box=SIMPLE_HEAD)
        for heading in headings:
            shown.add_column(heading.replace(" ", "\n"))
        for row in cells:
            shown.add_row(*row)
        tables.append(shown)
    return Group(title, *tables)


def write_live_tables(document: Path, rows: Sequence[LiveRow], title: str) -> None:
    """Put all tables between the marks in ``document``.

    Raises:
        InvalidInput: if it is not a file with both marks.
    """
    lines = [title, ""]
    for name, headings, cells in _tables(rows):
        lines += [f"{name[0].upper()}{name[1:]}:", "", *table(headings, cells), ""]
    write_between(document, BEGIN, END, "\n".join(lines))


def _tables(rows: Sequence[LiveRow]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    return [
        ("time per minibatch here", HEADINGS, seconds_rows(rows)),
        ("the agent's speed-up over", RATIO_HEADINGS, ratio_rows(rows)),
        ("replicas per stage", CONFIGURATION_HEADINGS, configuration_rows(rows)),
        ("seconds per minibatch in the paper", PAPER_HEADINGS, paper_rows(rows)),
    ]
