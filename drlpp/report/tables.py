"""Tables of races and placements, the same in a terminal and on a run's page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table as TerminalTable

from drlpp.errors import RunFailure
from drlpp.io.formatting import emulation_text, range_text, seconds_text
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners.map import Cell
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender, usual_method
from drlpp.racing.halving import replay
from drlpp.racing.race import lead_over
from drlpp.racing.rivals import PLAIN
from drlpp.racing.training_race import RaceEnd, Training, TrainingRace


@dataclass(frozen=True)
class Table:
    """A table of texts, which ``rich`` prints.

    Attributes:
        headings: of the columns. One that begins with ``>`` is of numbers, on the right and on one
            line; one that begins with ``=`` is of words on one line.
        rows: their cells.
        title: what it shows, in lines.
        best: the row to be marked; None for none.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    best: int | None = None

    def __rich__(self) -> TerminalTable:
        """Return the one kind of table that programs print."""
        table = TerminalTable(
            title=self.title or None,
            title_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        for heading in self.headings:
            table.add_column(
                heading.lstrip(">="),
                justify="right" if heading.startswith(">") else "left",
                no_wrap=heading[:1] in (">", "="),
                overflow="fold",
            )
        for number, row in enumerate(self.rows):
            table.add_row(*row, style="bold green" if number == self.best else None)
        return table


def map_table(cells: Sequence[Cell]) -> Table:
    """Return which way of training would win with other links and memory."""
    rows: dict[float, list[str]] = {}
    for cell in cells:
        way = cell.way or "–"
        rows.setdefault(cell.memory_ratio, []).append(f"[{way}]" if cell.own else way)
    columns = dict.fromkeys(cell.weights_ratio for cell in cells)
    return Table(
        ["=R_m \\ R_w", *(f"={column:.2g}" for column in columns)],
        [[f"{row:.2g}" if row else "no limit", *rows[row]] for row in sorted(rows, reverse=True)],
        title="predicted to reach a loss first with other links (R_w) and memory (R_m: what "
        "training on one accelerator needs / what it has); yours in brackets; flushed: a pipeline "
        "without late weights; –: nothing fits",
    )


def comparison_table(comparison: Comparison) -> Table:
    """Return what was compared side by side, the fastest by median of most rounds marked.

    Those with fewer rounds dropped out of the race before its end. The spread is the fastest and
    the slowest round: with a handful of them, quartiles would say less. A ratio is paired by
    rounds, as in the verdict.
    """
    contenders, usual = comparison.contenders, usual_method(comparison.contenders)
    rounds = max((len(one.seconds) for one in contenders), default=0)
    weighs = comparison.weighs_samples
    title = f"time per minibatch, median and range of at most {rounds} rounds; ratios"
    title += " to a loss" * weighs + ", paired by rounds"
    title += "; samples to a loss, for each of plain PyTorch's" * weighs
    if comparison.speeds:
        title += f"\n{emulation_text(comparison.speeds)}"
    verdict = comparison.verdict
    best = None if verdict is None else verdict.best_rival
    references = (
        () if best is None else contenders[best].costs,
        next((one.costs for one in contenders if PLAIN in one.names), ()),
    )
    over = (*["samples"] * weighs, "over\nbest\nrival", "over\nplain\nPyTorch")
    return Table(
        ("found by", "configuration", "median", "range", *over),
        [(one.found_by, one.beside(usual), *_cells(one, references, weighs)) for one in contenders],
        title,
        best=None if verdict is None else verdict.fastest,
    )


def _cells(one: Contender, references: Sequence[Sequence[float]], weighs: bool) -> tuple[str, ...]:
    seconds, costs = one.seconds, one.costs
    samples = [f"{one.samples:.2f}×" if one.is_judged else "–"] * weighs
    if not seconds:
        return ("failed", "–", *samples, *("–" for _ in references))
    ratios = (f"{lead_over(costs, own).ratio:.2f}×" if own and costs else "–" for own in references)
    middle = seconds_text(statistics.median(seconds))
    return (middle, range_text(min(seconds), max(seconds)), *samples, *ratios)


def describe_comparison(comparison: Comparison) -> RenderableType:
    """Show every entrant, what failed, and what the comparison says."""
    verdict = comparison.verdict
    failures = [f"{one.found_by}: {one.failure}" for one in comparison.contenders if one.failure]
    lines = [] if verdict is None else verdict.lines()
    return Group(comparison_table(comparison), *failures, *lines)


def race_table(race: TrainingRace, end: RaceEnd) -> Table:
    """Return every candidate: its learning rate, its speed, and when it reached the loss."""
    to_goal = f"to loss {end.loss:.4g}"
    trainings = "one training" if race.finals == 1 else f"finalists: median of {race.finals}"
    medians = {c: statistics.median(f.cost for f in end.finals_of(c)) for c in end.finalists}
    costs, usual = end.costs | medians, usual_method(race.candidates)
    # Finalists, the winner first, then what reached the loss, then the rest.
    ranked = sorted(
        range(len(race.candidates)),
        key=lambda c: (c != end.winner, c not in medians, costs.get(c, math.inf)),
    )
    rows = []
    for number in ranked:
        candidate, rate = race.candidates[number], end.rates[number]
        curve = None if rate is None else race.curves[Training(number, rate)]
        reached = curve and curve.minibatches_to(end.loss)
        rows.append(
            (
                f"{candidate.found_by} {candidate.beside(usual)}",
                "" if rate is None else f"{rate:.2g}",
                f"{curve.minibatches / curve.seconds:.1f}" if curve and curve.seconds else "",
                seconds_text(costs[number]) if number in costs else "",
                "" if reached is None else f"{reached:.0f}",
                end.ended.get(number, ""),
            )
        )
    columns = "=candidate", ">rate", ">mini-\nbatches/s", f">{to_goal}"
    return Table(
        (*columns, ">mini-\nbatches", "ended"),
        rows,
        f"{race.model} on {race.data}: training {to_goal}, {trainings}",
        best=None if end.winner is None else ranked.index(end.winner),
    )


def told_of_race(race: TrainingRace) -> tuple[RaceEnd | None, list[str]]:
    """Return how a race to a loss in a file ended, None if it has not, and what it says."""
    try:
        end = replay(race)
    except RunFailure as error:
        return None, [f"the race failed: {error}"]
    if end is None:
        count, runs = len(race.candidates), len(race.runs)
        return None, [f"a race of {count} candidates, {runs} trainings so far"]
    return end, list(end.lines())


def describe_race(race: TrainingRace) -> RenderableType:
    """Describe a race to a loss in a file: its table, if it has ended, and what it says."""
    end, lines = told_of_race(race)
    table = [] if end is None else [race_table(race, end)]
    return Group(*table, *lines)


def measured_table(measured: Sequence[tuple[Candidate, Outcome]]) -> Table:
    """Return every measurement, the fastest first, and why others failed."""
    ran = [(c, o) for c, o in measured if isinstance(o, Measurement)]
    failed = [(c, o) for c, o in measured if not isinstance(o, Measurement)]
    rows = [
        (
            candidate.configuration,
            stages_text(candidate.placement),
            str(candidate.method),
            seconds_text(run.seconds_per_minibatch) + ", cut short" * run.cut_short,
            seconds_text(run.standard_deviation_seconds),
        )
        for candidate, run in sorted(ran, key=lambda of: of[1].seconds_per_minibatch)
    ]
    rows += [
        (c.configuration, stages_text(c.placement), str(c.method), f"failed: {o.reason}", "–")
        for c, o in failed
    ]
    headings = "configuration", "operators on accelerators", "method", ">a minibatch", ">deviation"
    return Table(headings, rows)


def stages_text(placement: Placement) -> str:
    """Return how many operators every stage has, and its accelerators, in a line."""
    return "; ".join(
        f"{len(stage.operators)} on {', '.join(map(str, stage.accelerators))}"
        for stage in placement.stages
    )
