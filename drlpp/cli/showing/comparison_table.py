"""Placements side by side: the table of a comparison, and what it says."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from drlpp.io.formatting import emulation_text, range_text, seconds_text
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender, Heat, update_text
from drlpp.racing.rivals import PLAIN
from drlpp.racing.verdict import best_rival, verdict_lines
from drlpp.schedule.method import Method


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One of what was compared.

    Attributes:
        found_by: the agent or the planner that it comes from, such as ``pipedream``.
        configuration: replicas per stage, or what says how it ran.
        seconds: per minibatch, of each round; empty if it could not be measured.
    """

    found_by: str
    configuration: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float | None:
        """Median of the rounds, None if there are none."""
        return statistics.median(self.seconds) if self.seconds else None


def comparison_table(
    rows: Sequence[ComparisonRow],
    references: Mapping[str, Sequence[float]],
    speeds: Sequence[float] = (),
) -> Table:
    """Show what was compared side by side.

    The fastest by median of those with most rounds is marked. Those with fewer dropped out of the
    race before its end. The spread is given as the fastest and the slowest round: with a handful of
    them, quartiles would say less. A ratio is the median of the reference divided by the row's.

    Args:
        rows: in the order in which to print them.
        references: what ratios are given over, a column each, with the seconds of every round.
        speeds: of every worker, if they emulated accelerators.
    """
    rounds = max((len(row.seconds) for row in rows), default=0)
    finished = [row for row in rows if row.seconds and len(row.seconds) == rounds]
    fastest = min((row.median or 0.0 for row in finished), default=None)
    title = f"time per minibatch, median and range of at most {rounds} rounds"
    if any("\n" in row.configuration for row in rows):
        title += "\nupdates every k: one update of k minibatches; others make one of each"
    if speeds:
        title += f"\n{emulation_text(speeds)}"
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("found by", no_wrap=True)
    table.add_column("configuration", no_wrap=True)
    for column in ("median", "range"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in references:
        table.add_column(f"over\n{name}", justify="right")
    for row in rows:
        if row.median is None:
            cells = ["failed", "–", *("–" for _ in references)]
        else:
            cells = [
                seconds_text(row.median),
                range_text(min(row.seconds), max(row.seconds)),
                *(_ratio_text(seconds, row.median) for seconds in references.values()),
            ]
        style = "bold green" if row in finished and row.median == fastest else None
        table.add_row(row.found_by, row.configuration, *cells, style=style)
    return table


def _ratio_text(reference: Sequence[float], median: float) -> str:
    return f"{statistics.median(reference) / median:.2f}×" if reference else "–"


def describe_comparison(comparison: Comparison) -> RenderableType:
    """Show every entrant, what was tried in the heats, and what the comparison says."""
    contenders, entrants = comparison.distinct, comparison.entrants
    usual = comparison.usual_method
    rows = [
        ComparisonRow(one.found_by, _configuration(one, usual), one.seconds) for one in contenders
    ]
    best = best_rival(entrants)
    references = {
        "best\nrival": entrants[best].costs if best is not None else (),
        "plain\nPyTorch": next((c.seconds for c in contenders if c.found_by == PLAIN), ()),
    }
    verdict = comparison.verdict
    lines = [] if verdict is None else list(verdict_lines(verdict, entrants))
    failures = [f"{c.found_by}: {c.failure}" for c in contenders if c.failure]
    heats = [_heat_text(heat, usual) for heat in comparison.heats if len(heat.candidates) > 1]
    return Group(comparison_table(rows, references, comparison.speeds), *heats, *failures, *lines)


def _configuration(one: Contender, usual: Method) -> str:
    """Return what it is, and on a line of its own how many minibatches make an update, if several.

    What takes several for one update is not as good as what takes as long with one.
    """
    text, minibatches = one.beside(usual), update_text(one)
    return text if minibatches == "1" else f"{text}\nupdates every {minibatches}"


def _heat_text(heat: Heat, usual: Method) -> str:
    """Return the candidates for a kind's place in the race.

    Those that came furthest are first, the fastest of them at the top; medians are of so many runs.
    """
    ranked = sorted(heat.candidates, key=lambda c: (-len(c.seconds), median(c.seconds or [0.0])))
    tried = "; ".join(
        f"{c.beside(usual)}: "
        + (f"{seconds_text(median(c.seconds))} ({len(c.seconds)}×)" if c.seconds else "failed")
        for c in ranked
    )
    return f"tried as {heat.kind}: {tried}"
