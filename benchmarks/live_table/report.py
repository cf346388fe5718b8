"""The live table as text: seconds per minibatch next to the paper's, and configurations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pandas import DataFrame
from rich.console import Group

from benchmarks.drl_pp_table import AGENT, PAPER
from benchmarks.report import markdown, terminal, write_between
from drlpp.comparison.comparison_file import Comparison
from drlpp.comparison.contenders import PLAIN, PLAN, Contender
from drlpp.comparison.verdict import Finding, best_rival
from drlpp.io.formatting import confidence_text, seconds_text

BEGIN = "<!-- live table: written by benchmarks.live_table -->"
END = "<!-- end of live table -->"

METHODS = {
    PLAIN: "plain",
    "data-parallel": "DP",
    "gpipe": "GPipe",
    "1f1b-flush": "flushed",
    "pipedream": "PipeDream",
    "exact": "exact",
    PLAN: "plan",
    AGENT: "agent",
}
"""Columns, by who found it; plain is PyTorch in one process, flushed is flushed 1F1B, plan is what
``drlpp plan`` proposes."""


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
        """Return the agent's speed-up over a method."""
        mine, other = self.cells[AGENT].seconds, self.cells[method].seconds
        return None if mine is None or other is None else other / mine


def live_row(model: str, comparison: Comparison, agent: str) -> LiveRow:
    """Return a row from a comparison, with the agent's placement that came furthest."""
    cells, usual = {}, comparison.usual_method
    for method in METHODS:
        name = agent if method == AGENT else method
        found = [c for c in comparison.contenders if c.found_by == name]
        best = min(found, key=_by_result, default=None)
        cells[method] = Cell(best.beside(usual), _median(best)) if best else Cell("–", None)
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


def tables(rows: Sequence[LiveRow]) -> dict[str, DataFrame]:
    """Return all tables by their titles; drl-pp's Table 1 only of models that it has."""

    def table(cells: Callable[[LiveRow], dict[str, str]]) -> DataFrame:
        return DataFrame({"model": row.model, **cells(row)} for row in rows)

    of_paper = [PAPER[row.model] for row in rows if row.model in PAPER]
    found = {
        "time per minibatch here": table(
            lambda row: {
                title: _seconds(row.cells[name].seconds) for name, title in METHODS.items()
            }
        ),
        "the agent's speed-up over": table(
            lambda row: {
                "best rival": _ratio(row.over_best),
                **{
                    METHODS[n]: _ratio(row.over(n)) for n in ("data-parallel", "pipedream", "exact")
                },
                "verdict, confidence": row.verdict,
            }
        ),
        "replicas per stage": table(
            lambda row: {
                **{title: row.cells[name].configuration for name, title in METHODS.items()},
                "paper's": PAPER[row.model].configuration if row.model in PAPER else "–",
            }
        ),
        "seconds per minibatch in the paper": DataFrame(
            {
                "model": paper.model,
                **{METHODS[name]: f"{value:.3f}" for name, value in paper.seconds.items()},
                **{
                    f"over {METHODS[name]}": paper.over(name)
                    for name in ("data-parallel", "pipedream")
                },
            }
            for paper in of_paper
        ).rename(columns={METHODS[AGENT]: "DRL-PP"}),
    }
    return {title: frame for title, frame in found.items() if len(frame)}


def _seconds(seconds: float | None) -> str:
    return "failed" if seconds is None else seconds_text(seconds)


def _ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


def live_tables(rows: Sequence[LiveRow], title: str) -> Group:
    """Return all tables for a terminal."""
    return Group(
        title,
        *(
            terminal(frame.rename(columns=lambda heading: heading.replace(" ", "\n")), name)
            for name, frame in tables(rows).items()
        ),
    )


def write_live_tables(document: Path, rows: Sequence[LiveRow], title: str) -> None:
    """Put all tables between the marks in ``document``.

    Raises:
        InvalidInput: if it is not a file with both marks.
    """
    lines = [title, ""]
    for name, frame in tables(rows).items():
        lines += [f"{name[0].upper()}{name[1:]}:", "", markdown(frame), ""]
    write_between(document, BEGIN, END, "\n".join(lines))
