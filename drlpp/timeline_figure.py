"""A picture of a timeline: who does what when, in one row for each worker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from drlpp.pipeline import Pipeline
from drlpp.schedule import AllReduce, Backward, Forward, Update
from drlpp.timeline import TimedAction


@dataclass(frozen=True, slots=True)
class _Style:
    """How actions of one type are drawn: ``bottom`` and ``height`` are parts of a row of 1."""

    label: str
    colour: str
    bottom: float = 0.12
    height: float = 0.76
    outline_points: float = 0.0


# Okabe and Ito's palette, which colour-blind readers can tell apart.
_STYLES: dict[type, _Style] = {
    Forward: _Style("forward", "#56B4E9", outline_points=0.6),
    Backward: _Style("backward", "#E69F00", outline_points=0.6),
    AllReduce: _Style("all-reduce", "#CC79A7", bottom=0.38, height=0.24),
    Update: _Style("update", "#009E73"),
}
_FONT_POINTS = 8.0
_DIGIT_POINTS = 0.7 * _FONT_POINTS


def draw(
    timed_actions: Iterable[TimedAction],
    title: str | None = None,
    pipeline: Pipeline | None = None,
    width_inches: float = 10.0,
) -> Figure:
    """Draw one row for each worker, its forwards and backwards with the number of the minibatch.

    Numbers are left out where a box is too narrow for them; with microbatches they read
    ``minibatch.microbatch``. Nothing global is touched: no pyplot, no current figure.

    Args:
        timed_actions: what :func:`drlpp.timeline.play` returned or a run recorded, or a part of it.
        title: a line above the picture.
        pipeline: with it, rows are ordered and labelled by stage.
        width_inches: width of the figure; its height follows from the number of workers.
    """
    actions = [timed for timed in timed_actions if type(timed.action) in _STYLES]
    if pipeline is None:
        names = {worker: f"worker {worker}" for worker in sorted({t.worker for t in actions})}
    else:
        names = {
            worker: f"stage {stage} · worker {worker}"
            for stage, workers in enumerate(pipeline.stages)
            for worker in workers
        }
    figure = Figure(figsize=(width_inches, 1.2 + 0.38 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    row_of = {worker: row for row, worker in enumerate(names)}
    begin = min((timed.start for timed in actions), default=0.0)
    end = max((timed.end for timed in actions), default=1.0)
    axes.set(xlim=(begin, max(end, begin + 1e-9)), ylim=(max(len(names), 1), 0))
    _draw_boxes(axes, actions, row_of)
    # Row labels and margins take about a fifth of the width.
    points_per_second = 0.8 * width_inches * 72 / max(end - begin, 1e-9)
    _draw_numbers(axes, actions, row_of, points_per_second)

    axes.set_yticks([row + 0.5 for row in range(len(names))], list(names.values()))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(EngFormatter(unit="s"))
    axes.spines[["top", "right", "left"]].set_visible(False)
    drawn = {type(timed.action) for timed in actions}
    handles = [
        Patch(color=style.colour, label=style.label)
        for kind, style in _STYLES.items()
        if kind in drawn
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower right", ncols=4, frameon=False)
    if title is not None:
        axes.set_title(title, loc="left", fontsize=11)
    return figure


def _draw_boxes(axes: Axes, actions: Sequence[TimedAction], row_of: dict[int, int]) -> None:
    spans: dict[tuple[int, type], list[tuple[float, float]]] = defaultdict(list)
    for timed in actions:
        spans[timed.worker, type(timed.action)].append((timed.start, timed.end - timed.start))
    for (worker, kind), boxes in spans.items():
        style = _STYLES[kind]
        axes.broken_barh(
            boxes,
            (row_of[worker] + style.bottom, style.height),
            facecolor=style.colour,
            edgecolor="white",
            linewidth=style.outline_points,
        )


def _draw_numbers(
    axes: Axes,
    actions: Sequence[TimedAction],
    row_of: dict[int, int],
    points_per_second: float,
) -> None:
    passes = [
        (timed, timed.action) for timed in actions if isinstance(timed.action, Forward | Backward)
    ]
    has_microbatches = any(action.microbatch for _, action in passes)
    for timed, action in passes:
        number = str(action.minibatch)
        if has_microbatches:
            number += f".{action.microbatch}"
        if (timed.end - timed.start) * points_per_second >= _DIGIT_POINTS * len(number):
            axes.text(
                (timed.start + timed.end) / 2,
                row_of[timed.worker] + 0.5,
                number,
                ha="center",
                va="center",
                fontsize=_FONT_POINTS,
                clip_on=True,
            )
