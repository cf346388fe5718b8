"""Charts of a run's races; how well the simulator predicted its search."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import names_of
from drlpp.racing.training_race import RaceEnd, TrainingRace
from drlpp.report.run_files import RunFiles
from drlpp.simulator import simulate

_WIDTH_INCHES = 9.0
_COLOUR = "#2B87BF"


def _figure(height: float, axes: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained", facecolor="none")
    found = [figure.add_subplot(1, axes, number + 1) for number in range(axes)]
    for one in found:
        one.set_facecolor("none")
        one.grid(alpha=0.3)
        one.spines[["top", "right"]].set_visible(False)
    return figure, found


def race_chart(comparison: Comparison) -> Figure | None:
    """Draw every round of every contender, and their medians; None if nothing was measured."""
    named = zip(names_of(comparison.contenders), comparison.contenders, strict=True)
    ran = [(median(one.seconds), name, one.seconds) for name, one in named if one.seconds]
    if not ran:
        return None
    ran.sort()
    figure, (axes,) = _figure(1.0 + 0.3 * len(ran))
    for row, (middle, _, seconds) in enumerate(ran):
        axes.plot([1e3 * s for s in seconds], [row] * len(seconds), "o", color=_COLOUR, alpha=0.7)
        axes.plot(1e3 * middle, row, "|", color=_COLOUR, markersize=16, markeredgewidth=3)
    # A dollar sign would begin a formula.
    axes.set_yticks(range(len(ran)), [name.replace("$", r"\$") for _, name, _ in ran])
    axes.set_ylim(len(ran) - 0.5, -0.5)
    axes.set_xlabel("milliseconds per minibatch")
    return figure


def loss_chart(
    race: TrainingRace, end: RaceEnd | None, batch_size: int | None = None
) -> Figure | None:
    """Draw the held-out loss of every candidate, over seconds and samples; plain PyTorch is dashed.

    Of a race that has ended, trainings at the best learning rate: a line for each of them. Without
    ``batch_size`` there are minibatches in place of samples.
    """
    names, drawn = names_of(race.candidates), []
    for run in race.runs:
        rate = None if end is None else end.rates.get(run.candidate)
        points = [point for point in run.curve.points if point.loss is not None]
        if points and (rate is None or run.rate == rate):
            suffix = "" if rate is not None else f", rate {run.rate:.2g}"
            drawn.append((run.candidate, names[run.candidate] + suffix, points))
    if not drawn:
        return None
    colours = {name: f"C{n}" for n, name in enumerate(dict.fromkeys(name for _, name, _ in drawn))}
    figure, (left, right) = _figure(3.6 + 0.2 * len(colours), axes=2)
    named: set[str] = set()
    for candidate, name, points in drawn:
        same: dict[str, Any] = {
            "color": colours[name],
            "linestyle": "--" if race.candidates[candidate].placement is None else "-",
            "linewidth": 1.4,
            "marker": "." if len(points) < 50 else None,
        }
        label = None if name in named else name.replace("$", r"\$")
        named.add(name)
        losses = [point.comparable_loss for point in points]
        left.plot([point.seconds for point in points], losses, label=label, **same)
        right.plot([(batch_size or 1) * point.minibatches for point in points], losses, **same)
    left.set_xlabel("seconds of training")
    right.set_xlabel(f"samples, {batch_size} in a minibatch" if batch_size else "minibatches")
    left.set_ylabel("loss")
    figure.legend(loc="outside lower left", frameon=False, fontsize="small")
    if end is not None:
        for axes in figure.axes:
            axes.axhline(end.loss, color="grey", linestyle=":", linewidth=1)
    return figure


def policy_chart(curve: Sequence[tuple[float, ...]]) -> Figure:
    """Draw the mean reward that a policy imagined, and its best placement beside the search's."""
    figure, (left, right) = _figure(3.0, axes=2)
    measured, rewards, own, search = zip(*curve, strict=True)
    left.plot(measured, rewards, ".-", color=_COLOUR)
    left.set(xlabel="placements measured", ylabel="mean imagined reward of the policy")
    right.plot(measured, own, ".-", measured, search, ".--")
    right.legend(["policy", "search"], frameon=False)
    right.set(xlabel="placements measured", ylabel="best imagined seconds")
    return figure


def prediction_errors(files: RunFiles) -> list[float]:
    """Return how far off the simulator is of every candidate that was measured, as a share.

    Raises:
        InvalidPlacement: profile or cluster are not those that the run began with.
    """
    if files.profile is None or files.cluster is None:
        return []
    measured: dict[Candidate, list[float]] = {}
    for candidate, outcome in files.measured:
        if isinstance(outcome, Measurement):
            measured.setdefault(candidate, []).append(outcome.seconds_per_minibatch)
    errors = []
    for candidate, times in measured.items():
        candidate.placement.validate_for(files.profile.graph, files.cluster.accelerators)
        workload = Workload.of(files.profile, candidate.method)
        played = simulate(workload, files.cluster, candidate.placement, candidate.method)
        errors.append(abs(played.seconds_per_minibatch / median(times) - 1))
    return errors
