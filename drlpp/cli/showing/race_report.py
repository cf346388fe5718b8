"""A race to a loss as a table and as a picture."""

from __future__ import annotations

import statistics
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from drlpp.io.formatting import seconds_text
from drlpp.racing.contenders import Contender
from drlpp.racing.curves import Curve
from drlpp.racing.halving import Training
from drlpp.racing.training_race import RaceEnd, TrainingRace, race_lines, replay


def race_table(race: TrainingRace, end: RaceEnd) -> Table:
    """Show every candidate: its learning rate, its speed, and when it reached the loss."""
    goal = end.goal
    to_goal = f"to loss {goal.loss:.4g}"
    trainings = "one training" if race.finals == 1 else f"finalists: median of {race.finals}"
    table = Table(
        title=f"{race.model} on {race.data}: training {to_goal}, {trainings}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("candidate", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for column in ("rate", "mini-\nbatches/s", to_goal, "mini-\nbatches"):
        table.add_column(column, justify="right")
    table.add_column("ended")
    for number in _ranked(race, end):
        candidate, rate = race.candidates[number], end.result.rates[number]
        curve = None if rate is None else race.curves[Training(number, rate)]
        plain = candidate.placement is None
        table.add_row(
            f"{'* '[number != end.winner]} {candidate.found_by} {candidate.configuration}",
            "" if plain else _method_text(candidate),
            "" if rate is None else f"{rate:.2g}",
            _speed(curve),
            _cost(end, number),
            _minibatches(curve, end),
            end.result.ended.get(number, ""),
        )
    return table


def _ranked(race: TrainingRace, end: RaceEnd) -> list[int]:
    """Return the finalists, the winner first, then who got there, then the rest as listed."""
    finalists = sorted(end.result.finalists, key=lambda c: (c != end.winner, _median(end, c)))
    arrived = sorted(end.result.costs.keys() - set(finalists), key=lambda c: end.result.costs[c])
    known = [*finalists, *arrived]
    return known + [c for c in range(len(race.candidates)) if c not in known]


def _median(end: RaceEnd, candidate: int) -> float:
    return statistics.median(final.cost for final in end.finals_of(candidate))


def _method_text(candidate: Contender) -> str:
    """Return the schedule and the policy; what else a method has is common to all."""
    return f"{candidate.method.schedule} {candidate.method.policy}"


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


def describe_race(race: TrainingRace) -> RenderableType:
    """Describe a race in a file: as far as it is, or its table and what it says."""
    end = replay(race)
    table = [] if end is None else [race_table(race, end)]
    return Group(*table, *race_lines(race, end))


def draw_race(race: TrainingRace, end: RaceEnd, path: Path) -> Path:
    """Draw held-out loss over seconds and over minibatches, a line each, and write the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    over_seconds, over_samples = figure.subplots(1, 2, sharey=True)
    for number, candidate in enumerate(race.candidates):
        rate = end.result.rates[number]
        if rate is None:
            continue
        points = [p for p in race.curves[Training(number, rate)].points if p.loss is not None]
        label = f"{candidate.found_by} {candidate.configuration}"
        if candidate.placement is not None:
            label += f", {_method_text(candidate)}"
        width = 2.5 if number == end.winner else 1.2
        losses = [p.loss for p in points]
        over_seconds.plot([p.seconds for p in points], losses, label=label, linewidth=width)
        over_samples.plot([p.minibatches for p in points], losses, linewidth=width)
    over_seconds.set_xlabel("seconds of training")
    over_samples.set_xlabel("minibatches")
    over_seconds.set_ylabel("held-out loss")
    for axes in (over_seconds, over_samples):
        axes.axhline(end.goal.loss, color="grey", linestyle=":", linewidth=1)
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=120)
    return path
