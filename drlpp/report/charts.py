"""Charts of a run: its races, its training, its search; how well the simulator predicted it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender, names_of
from drlpp.racing.training_race import RaceEnd, TrainingRace
from drlpp.report.run_files import RunFiles, Scalar
from drlpp.simulator import simulate

_WIDTH_INCHES = 9.0
_COMPUTING, _WAITING = "#2B87BF", "#A9AEB4"
"""Colours that colour-blind people tell apart, on light and on dark paper."""

_MOST_POINTS = 1000


def _figure(height: float, axes: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained", facecolor="none")
    found = [figure.add_subplot(1, axes, number + 1) for number in range(axes)]
    for one in found:
        one.set_facecolor("none")
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    return figure, found


def _rows(axes: Axes, names: Sequence[str]) -> None:
    """Give every horizontal row its name, the first at the top."""
    # A dollar sign would begin a formula.
    axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)


def race_chart(comparison: Comparison) -> Figure | None:
    """Draw every round of every contender, and their medians; None if nothing was measured."""
    named = zip(names_of(comparison.contenders), comparison.contenders, strict=True)
    ran = [(median(one.seconds), name, one.seconds) for name, one in named if one.seconds]
    if not ran:
        return None
    ran.sort()
    figure, (axes,) = _figure(1.0 + 0.3 * len(ran))
    for row, (middle, _, seconds) in enumerate(ran):
        axes.plot(
            [1e3 * s for s in seconds], [row] * len(seconds), "o", color=_COMPUTING, alpha=0.7
        )
        axes.plot(1e3 * middle, row, "|", color=_COMPUTING, markersize=16, markeredgewidth=3)
    _rows(axes, [name for _, name, _ in ran])
    axes.set_xlabel("milliseconds per minibatch")
    return figure


def loss_chart(
    race: TrainingRace, end: RaceEnd | None, batch_size: int | None = None
) -> Figure | None:
    """Draw the held-out loss of every candidate, over seconds and samples; plain PyTorch is dashed.

    Of a race that has ended, trainings at the best learning rate: a line for each of them. Without
    ``batch_size`` there are minibatches in place of samples.
    """
    names, lines = names_of(race.candidates), []
    for run in race.runs:
        rate = None if end is None else end.rates.get(run.candidate)
        if rate is not None and run.rate != rate:
            continue
        points = [point for point in run.curve.points if point.loss is not None]
        lines.append(
            _Line(
                names[run.candidate] + ("" if rate is not None else f", rate {run.rate:.2g}"),
                [point.seconds for point in points],
                [point.minibatches for point in points],
                [point.comparable_loss for point in points],
                race.candidates[run.candidate].placement is None,
            )
        )
    figure = _over_both(lines, "seconds of training", batch_size)
    if figure is not None and end is not None:
        for axes in figure.axes:
            axes.axhline(end.loss, color="grey", linestyle=":", linewidth=1)
    return figure


def training_chart(
    train: Sequence[Scalar], held_out: Sequence[Scalar], batch_size: int | None
) -> Figure | None:
    """Draw a training's losses; those held out stand behind the minibatches before them.

    Without ``batch_size`` they are over minibatches, else over samples.
    """
    times = [s.seconds for s in train]
    last_steps = list(accumulate((s.step for s in train), max, initial=-1))
    shown = train[:: max(1, len(train) // _MOST_POINTS)]
    done = [1 + last_steps[bisect_right(times, s.seconds)] for s in held_out]
    lines = [
        _Line(name, [s.seconds for s in scalars], minibatches, [s.value for s in scalars])
        for name, scalars, minibatches in (
            ("training", shown, [s.step for s in shown]),
            ("held-out samples", held_out, done),
        )
    ]
    # Events do not say when a training paused.
    seconds = "seconds since the beginning, pauses and evaluations included"
    return _over_both(lines, seconds, batch_size)


class _Line(NamedTuple):
    name: str
    seconds: Sequence[float]
    minibatches: Sequence[int]
    losses: Sequence[float]
    dashed: bool = False


def _over_both(lines: Iterable[_Line], seconds: str, batch_size: int | None) -> Figure | None:
    """Draw losses over seconds and over samples, a colour for each name."""
    drawn = [line for line in lines if line.losses]
    if not drawn:
        return None
    names = list(dict.fromkeys(line.name for line in drawn))
    figure, (left, right) = _figure(3.6 + 0.2 * len(names), axes=2)
    for line in drawn:
        same: dict[str, Any] = {
            "color": f"C{names.index(line.name)}",
            "linestyle": "--" if line.dashed else "-",
            "linewidth": 1.4,
        }
        first = next(other for other in drawn if other.name == line.name) is line
        label = line.name.replace("$", r"\$") if first else None
        marker = "." if len(line.losses) < 50 else None
        left.plot(line.seconds, line.losses, label=label, marker=marker, **same)
        done = [(batch_size or 1) * minibatches for minibatches in line.minibatches]
        right.plot(done, line.losses, marker=marker, **same)
    left.set_xlabel(seconds, wrap=True)
    right.set_xlabel(f"samples, {batch_size} in a minibatch" if batch_size else "minibatches")
    left.set_ylabel("loss")
    figure.legend(loc="outside lower left", frameon=False, fontsize="small")
    return figure


def search_chart(measured: Sequence[tuple[Candidate, Outcome]]) -> Figure | None:
    """Draw the seconds of every measurement in turn, and the best so far."""
    ran = [
        (number, 1e3 * outcome.seconds_per_minibatch)
        for number, (_, outcome) in enumerate(measured, start=1)
        if isinstance(outcome, Measurement)
    ]
    if not ran:
        return None
    figure, (axes,) = _figure(3.0)
    numbers, milliseconds = zip(*ran, strict=True)
    axes.plot(numbers, milliseconds, "o", color=_COMPUTING, alpha=0.7, markersize=5)
    axes.step(numbers, list(accumulate(milliseconds, min)), where="post", color=_COMPUTING)
    axes.set_xlabel("measurement")
    axes.set_ylabel("milliseconds per minibatch")
    return figure


def usage_chart(contenders: Iterable[tuple[str, Contender]]) -> Figure | None:
    """Draw what part of its time every worker computed, in the last round of each contender.

    Contenders come with their names.
    """
    rows = []
    for name, contender in contenders:
        if contender.placement is None or not contender.measurements or contender.failure:
            continue
        last = contender.measurements[-1]
        whole = last.seconds_per_minibatch * last.minibatches
        rows += [
            (
                f"{name}: stage {usage.stage} · worker {usage.worker}",
                usage.busy_seconds / whole if whole else 0.0,
                f"{usage.peak_memory_bytes / 1e6:,.0f} MB",
            )
            for usage in last.workers
        ]
    if not rows:
        return None
    figure, (axes,) = _figure(1.0 + 0.25 * len(rows))
    names, shares, memory = zip(*rows, strict=True)
    axes.barh(range(len(rows)), [100.0] * len(rows), color=_WAITING, alpha=0.4, label="waiting")
    bars = axes.barh(
        range(len(rows)), [100 * share for share in shares], color=_COMPUTING, label="computing"
    )
    axes.bar_label(bars, memory, padding=3, fontsize="small")
    _rows(axes, names)
    axes.set_xlabel("% of the time; memory at most")
    figure.legend(loc="outside lower right", frameon=False, ncols=2, fontsize="small")
    return figure


def prediction_errors(files: RunFiles) -> list[float]:
    """Return how far off the simulator is of every candidate that was measured, as a share."""
    if files.profile is None or files.cluster is None:
        return []
    measured: dict[Candidate, list[float]] = {}
    for candidate, outcome in files.measured:
        if isinstance(outcome, Measurement):
            measured.setdefault(candidate, []).append(outcome.seconds_per_minibatch)
    errors = []
    for candidate, times in measured.items():
        workload = Workload.of(files.profile, candidate.method)
        played = simulate(workload, files.cluster, candidate.placement, candidate.method)
        errors.append(abs(played.seconds_per_minibatch / median(times) - 1))
    return errors
