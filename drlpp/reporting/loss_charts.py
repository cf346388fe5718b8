"""Charts of losses: over seconds and over samples, of a race or of one training."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import altair as alt

from drlpp.io.formatting import seconds_text
from drlpp.racing.training_race import RaceEnd, TrainingRace
from drlpp.reporting.run_files import Scalar
from drlpp.reporting.speed_charts import names_of

_WIDTH, _HEIGHT = 320, 280
_MOST_POINTS = 1000


def race_chart(
    race: TrainingRace, end: RaceEnd | None, batch_size: int | None
) -> alt.TopLevelMixin | None:
    """Draw the held-out loss of every candidate, over seconds and samples; plain PyTorch is dashed.

    Of a race that has ended, trainings at the best learning rate: a line for each of them. Without
    ``batch_size`` there are minibatches in place of samples.
    """
    best = {} if end is None else end.result.rates
    names = names_of(race.candidates)
    rows: list[dict[str, object]] = []
    for run in race.runs:
        rate = best.get(run.candidate)
        if rate is not None and run.rate != rate:
            continue
        name = names[run.candidate]
        if rate is None:
            name += f", rate {run.rate:.2g}"
        rows += [
            {
                "candidate": name,
                "plain": race.candidates[run.candidate].placement is None,
                "order of samples": run.seed,
                "seconds": point.seconds,
                "minibatches": point.minibatches,
                "loss": point.loss,
            }
            for point in run.curve.points
            if point.loss is not None
        ]
    return _side_by_side(
        rows, "candidate", "seconds of training", batch_size, line="order of samples"
    )


def training_chart(
    train: Sequence[Scalar], held_out: Sequence[Scalar], batch_size: int | None
) -> alt.TopLevelMixin | None:
    """Draw a training's losses; those held out stand behind the minibatches before them.

    Without ``batch_size`` they are over minibatches, else over samples.
    """
    times = [s.seconds for s in train]
    last_steps = list(accumulate((s.step for s in train), max, initial=-1))
    thinned = train[:: max(1, len(train) // _MOST_POINTS)]
    rows: list[dict[str, object]] = [
        {"loss of": "training", "seconds": s.seconds, "minibatches": s.step, "loss": s.value}
        for s in thinned
    ]
    rows += [
        {
            "loss of": "held-out samples",
            "seconds": s.seconds,
            "minibatches": 1 + last_steps[bisect_right(times, s.seconds)],
            "loss": s.value,
        }
        for s in held_out
    ]
    # Events do not say when a training paused.
    return _side_by_side(
        rows,
        "loss of",
        ["seconds since the beginning,", "pauses and evaluations included"],
        batch_size,
    )


def _side_by_side(
    rows: Sequence[dict[str, object]],
    of: str,
    seconds: str | list[str],
    batch_size: int | None,
    line: str = "",
) -> alt.TopLevelMixin | None:
    """Draw ``rows`` with a colour for each ``of``; those that differ in ``line`` are lines apart.

    ``seconds`` is the title of the axis of seconds, in lines.
    """
    if not rows:
        return None
    values = list(rows)
    if batch_size is not None:
        values = [row | {"samples": batch_size * int(str(row["minibatches"]))} for row in rows]
    apart: dict[str, object] = {}
    if line:
        dash = alt.Scale(domain=[True, False], range=[[7, 4], [1, 0]])
        plain = alt.StrokeDash("plain:N", scale=dash, legend=None)
        apart = {"detail": f"{line}:N", "strokeDash": plain}
    shown = [f"{of}:N", *([f"{line}:N"] if line else [])]
    names = list(dict.fromkeys(str(row[of]) for row in rows))
    legend = alt.Legend(orient="bottom", columns=1, labelLimit=0)

    def over(what: str, title: str | list[str]) -> alt.Chart:
        return (
            alt.Chart(alt.Data(values=values), width=_WIDTH, height=_HEIGHT)
            .mark_line(point=len(rows) < 300, strokeWidth=1.2 if line else 2)
            .encode(
                x=alt.X(f"{what}:Q", title=title),
                y=alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False)),
                color=alt.Color(f"{of}:N", title=None, sort=names, legend=legend),
                tooltip=[
                    *shown,
                    "seconds:Q",
                    "minibatches:Q",
                    alt.Tooltip("loss:Q", format=".4f"),
                ],
                **apart,
            )
            .interactive(name=f"zoom_{what}")
        )

    if batch_size is None:
        trained = over("minibatches", "minibatches")
    else:
        trained = over("samples", f"samples, {batch_size} in a minibatch")
    return alt.hconcat(
        over("seconds", seconds),
        trained,
        description="Loss over seconds and over "
        + ("minibatches: " if batch_size is None else "samples: ")
        + "; ".join(_ends(rows, of, names)),
    )


def _ends(rows: Sequence[dict[str, object]], of: str, names: Sequence[str]) -> Iterator[str]:
    """Yield in words where every line ends; of several lines of a name the last one."""
    for name in names:
        last = [row for row in rows if row[of] == name][-1]
        loss, seconds = float(str(last["loss"])), float(str(last["seconds"]))
        yield f"{name} ends at {loss:.4g} after {seconds_text(seconds)}"
