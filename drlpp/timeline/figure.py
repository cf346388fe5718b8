"""A picture of a timeline: who does what when, in one row for each worker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from drlpp.schedule.actions import SpanKind
from drlpp.schedule.pipeline import Pipeline
from drlpp.timeline.spans import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    KINDS,
    RECOMPUTE,
    Span,
    row_name,
    spans_of,
)
from drlpp.timeline.timeline import TimedAction

_NUMBERED = {FORWARD, RECOMPUTE, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT}
_OUTLINE_POINTS = 0.6
_COMPUTING_HEIGHT = 0.76  # of a row
_OTHER_HEIGHT = 0.24
_FONT_POINTS = 8.0
_DIGIT_POINTS = 0.7 * _FONT_POINTS
_SHARE_NUMBERED = 0.9
_LEAST_WIDTH_INCHES = 10.0
_MOST_WIDTH_INCHES = 24.0
_LEGEND_INCHES = 1.5
"""Of a name in the legend."""

_AXES_WIDTH = 0.8
"""The part of the figure's width; row labels and margins take the rest."""


def draw(
    timed_actions: Iterable[TimedAction],
    title: str | None = None,
    pipeline: Pipeline | None = None,
    window: tuple[float, float] | None = None,
    unit: str = "s",
    width_inches: float | None = None,
) -> Figure:
    """Draw one row for each worker, its passes with the number of the minibatch.

    The figure is as wide as the numbers of most passes need, within limits; they are left out where
    a box is too narrow. With microbatches they read ``minibatch.microbatch``. Nothing global is
    touched: no pyplot, no current figure.

    Args:
        timed_actions: what :func:`drlpp.timeline.timeline.play` returned or a run recorded, or a
        part of it.
        title: a line above the picture.
        pipeline: with it, rows are ordered and labelled by stage.
        window: begin and end of what is measured; marked by dashed lines.
        unit: of the times.
        width_inches: of the figure, instead of as wide as the numbers need.
    """
    actions = list(timed_actions)
    spans = spans_of(actions)
    if pipeline is None:
        names = {worker: f"worker {worker}" for worker in sorted({t.worker for t in actions})}
    else:
        names = {
            worker: f"{row_name(stages)} · worker {worker}"
            for worker, stages in pipeline.stages_by_worker.items()
        }
    begin = min((span.start for span in spans), default=0.0)
    end = max((span.end for span in spans), default=1.0)
    width_inches = width_inches or _width_inches(spans, end - begin)
    drawn = {span.kind for span in spans}
    handles = [Patch(color=kind.colour, label=kind.label) for kind in KINDS if kind in drawn]
    columns = max(1, min(len(KINDS), int(width_inches / _LEGEND_INCHES)))
    height = 1.0 + 0.38 * len(names) + 0.2 * -(-len(handles) // columns)
    figure = Figure(figsize=(width_inches, height), layout="constrained")
    axes = figure.add_subplot()
    row_of = {worker: row for row, worker in enumerate(names)}
    axes.set(xlim=(begin, max(end, begin + 1e-9)), ylim=(max(len(names), 1), 0))
    points_per_second = _AXES_WIDTH * width_inches * 72 / max(end - begin, 1e-9)
    _draw_boxes(axes, spans, row_of, points_per_second)
    _draw_numbers(axes, spans, row_of, points_per_second)
    for moment in window or ():
        axes.axvline(moment, color="black", linewidth=0.8, linestyle="--")

    axes.set_yticks([row + 0.5 for row in range(len(names))], list(names.values()))
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(EngFormatter(unit=unit))
    axes.spines[["top", "right", "left"]].set_visible(False)
    if handles:
        figure.legend(handles=handles, loc="outside lower right", ncols=columns, frameon=False)
    if title is not None:
        axes.set_title(title, loc="left", fontsize=11, wrap=True)
    return figure


def _width_inches(spans: Sequence[Span], seconds: float) -> float:
    """Return the width in inches at which most passes have room for their number, within limits."""
    needed = sorted(
        _DIGIT_POINTS * len(span.number) / span.seconds
        for span in spans
        if span.kind in _NUMBERED and span.seconds > 0
    )
    if not needed:
        return _LEAST_WIDTH_INCHES
    points_per_second = needed[int(_SHARE_NUMBERED * (len(needed) - 1))]
    width = points_per_second * seconds / 72 / _AXES_WIDTH
    return min(max(width, _LEAST_WIDTH_INCHES), _MOST_WIDTH_INCHES)


def _draw_boxes(
    axes: Axes, spans: Sequence[Span], row_of: dict[int, int], points_per_second: float
) -> None:
    boxes_of: dict[tuple[int, SpanKind, bool], list[tuple[float, float]]] = defaultdict(list)
    for span in spans:
        # An outline would hide what is hardly wider.
        outlined = span.kind in _NUMBERED and span.seconds * points_per_second > 4 * _OUTLINE_POINTS
        boxes_of[span.worker, span.kind, outlined].append((span.start, span.seconds))
    for (worker, kind, outlined), boxes in boxes_of.items():
        height = _COMPUTING_HEIGHT if kind.computes else _OTHER_HEIGHT
        axes.broken_barh(
            boxes,
            (row_of[worker] + (1 - height) / 2, height),
            facecolor=kind.colour,
            edgecolor="white",
            linewidth=_OUTLINE_POINTS if outlined else 0.0,
        )


def _draw_numbers(
    axes: Axes, spans: Sequence[Span], row_of: dict[int, int], points_per_second: float
) -> None:
    for span in spans:
        wide = span.seconds * points_per_second >= _DIGIT_POINTS * len(span.number)
        if wide and span.kind in _NUMBERED:
            axes.text(
                (span.start + span.end) / 2,
                row_of[span.worker] + 0.5,
                span.number,
                ha="center",
                va="center",
                fontsize=_FONT_POINTS,
                clip_on=True,
            )
