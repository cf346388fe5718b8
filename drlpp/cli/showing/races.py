"""Races as tables: seconds per minibatch of contenders, and trainings to a loss."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from drlpp.cli.showing.table import table_of
from drlpp.io.formatting import emulation_text, range_text, seconds_text
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender, Heat, update_text
from drlpp.racing.curves import Curve
from drlpp.racing.halving import Training
from drlpp.racing.rivals import PLAIN
from drlpp.racing.training_race import RaceEnd, TrainingRace, race_lines, replay
from drlpp.racing.verdict import best_rival, verdict_lines
from drlpp.schedule.method import Method


def describe_comparison(comparison: Comparison) -> RenderableType:
    """Show every entrant, what was tried in the heats, and what the comparison says."""
    contenders, entrants = comparison.distinct, comparison.entrants
    usual, best = comparison.usual_method, best_rival(entrants)
    references = {
        "best\nrival": entrants[best].costs if best is not None else (),
        "plain\nPyTorch": next((c.seconds for c in contenders if c.found_by == PLAIN), ()),
    }
    verdict = comparison.verdict
    lines = [] if verdict is None else list(verdict_lines(verdict, entrants))
    failures = [f"{c.found_by}: {c.failure}" for c in contenders if c.failure]
    heats = [_heat_text(heat, usual) for heat in comparison.heats if len(heat.candidates) > 1]
    rows = [(one.found_by, _configuration(one, usual), one.seconds) for one in contenders]
    table = comparison_table(rows, references, comparison.speeds)
    return Group(table, *heats, *failures, *lines)


def comparison_table(
    rows: Sequence[tuple[str, str, Sequence[float]]],
    references: Mapping[str, Sequence[float]],
    speeds: Sequence[float] = (),
) -> Table:
    """Show what was compared side by side.

    The fastest by median of those with most rounds is marked. Those with fewer dropped out of the
    race before its end. The spread is given as the fastest and the slowest round: with a handful of
    them, quartiles would say less. A ratio is the median of the reference divided by the row's.

    Args:
        rows: who found it, its configuration, and seconds per minibatch of each round.
        references: what ratios are given over, a column each, with the seconds of every round.
        speeds: of every worker, if they emulated accelerators.
    """
    rounds = max((len(seconds) for _, _, seconds in rows), default=0)
    medians = [statistics.median(seconds) if seconds else math.inf for _, _, seconds in rows]
    finished = [
        median
        for median, (*_, seconds) in zip(medians, rows, strict=True)
        if len(seconds) == rounds
    ]
    title = f"time per minibatch, median and range of at most {rounds} rounds"
    if any("\n" in configuration for _, configuration, _ in rows):
        title += "\nupdates every k: one update of k minibatches; others make one of each"
    if speeds:
        title += f"\n{emulation_text(speeds)}"
    over = [f">over\n{name}" for name in references]
    table = table_of(["=found by", "=configuration", ">median", ">range", *over], [], title)
    for (found_by, configuration, seconds), median in zip(rows, medians, strict=True):
        cells = ["failed", "–", *("–" for _ in references)]
        if seconds:
            ratios = [
                f"{statistics.median(reference) / median:.2f}×" if reference else "–"
                for reference in references.values()
            ]
            cells = [seconds_text(median), range_text(min(seconds), max(seconds)), *ratios]
        best = len(seconds) == rounds > 0 and median == min(finished)
        table.add_row(found_by, configuration, *cells, style="bold green" if best else None)
    return table


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
    ranked = sorted(
        heat.candidates, key=lambda c: (-len(c.seconds), statistics.median(c.seconds or [0.0]))
    )
    tried = "; ".join(
        f"{c.beside(usual)}: "
        + (
            f"{seconds_text(statistics.median(c.seconds))} ({len(c.seconds)}×)"
            if c.seconds
            else "failed"
        )
        for c in ranked
    )
    return f"tried as {heat.kind}: {tried}"


def describe_race(race: TrainingRace) -> RenderableType:
    """Describe a race to a loss: as far as it is, or its table and what it says."""
    end = replay(race)
    table = [] if end is None else [race_table(race, end)]
    return Group(*table, *race_lines(race, end))


def race_table(race: TrainingRace, end: RaceEnd) -> Table:
    """Show every candidate: its learning rate, its speed, and when it reached the loss."""
    to_goal = f"to loss {end.goal.loss:.4g}"
    trainings = "one training" if race.finals == 1 else f"finalists: median of {race.finals}"
    rows = []
    for number in _ranked(race, end):
        candidate, rate = race.candidates[number], end.result.rates[number]
        curve = None if rate is None else race.curves[Training(number, rate)]
        method = candidate.method
        mark = "*" if number == end.winner else " "
        rows.append(
            [
                f"{mark} {candidate.found_by} {candidate.configuration}",
                "" if candidate.placement is None else f"{method.schedule} {method.policy}",
                "" if rate is None else f"{rate:.2g}",
                _speed(curve),
                _cost(end, number),
                _minibatches(curve, end),
                end.result.ended.get(number, ""),
            ]
        )
    columns = ["=candidate", "=method", ">rate", ">mini-\nbatches/s", f">{to_goal}"]
    title = f"{race.model} on {race.data}: training {to_goal}, {trainings}"
    return table_of([*columns, ">mini-\nbatches", "ended"], rows, title)


def _ranked(race: TrainingRace, end: RaceEnd) -> list[int]:
    """Return the finalists, the winner first, then who got there, then the rest as listed."""
    finalists = sorted(end.result.finalists, key=lambda c: (c != end.winner, _median(end, c)))
    arrived = sorted(end.result.costs.keys() - set(finalists), key=lambda c: end.result.costs[c])
    known = [*finalists, *arrived]
    return known + [c for c in range(len(race.candidates)) if c not in known]


def _median(end: RaceEnd, candidate: int) -> float:
    return statistics.median(final.cost for final in end.finals_of(candidate))


def _speed(curve: Curve | None) -> str:
    if curve is None or not curve.seconds:
        return ""
    return f"{curve.last.minibatches / curve.seconds:.1f}"


def _cost(end: RaceEnd, number: int) -> str:
    """Return a finalist's median, or what it took in the halving."""
    if number not in end.result.costs:
        return ""
    finalist = number in end.result.finalists
    cost = _median(end, number) if finalist else end.result.costs[number]
    return seconds_text(cost)


def _minibatches(curve: Curve | None, end: RaceEnd) -> str:
    if curve is None:
        return ""
    reached = curve.minibatches_to(end.goal.loss)
    return "" if reached is None else f"{reached:.0f}"
