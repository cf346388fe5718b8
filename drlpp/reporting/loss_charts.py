"""Charts of losses: over seconds and over minibatches, of a race or of one training."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import altair as alt

from drlpp.reporting.run_files import Scalar
from drlpp.reporting.speed_charts import names_of
from drlpp.training_race.judging import RaceEnd
from drlpp.training_race.training_race_file import TrainingRace

_WIDTH, _HEIGHT = 320, 280
_MOST_POINTS = 1000


def race_chart(race: TrainingRace, end: RaceEnd | None) -> alt.TopLevelMixin | None:
    """Draw the held-out loss of every candidate, over seconds and minibatches.

    Of a race that has ended, trainings at the best learning rate: a line for each of them.
    """
    best = {} if end is None else end.result.rates
    names = names_of(race.candidates)
    rows = []
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
                "order of samples": run.seed,
                "seconds": point.seconds,
                "minibatches": point.minibatches,
                "loss": point.loss,
            }
            for point in run.curve.points
            if point.loss is not None
        ]
    return _side_by_side(rows, "candidate", "seconds of training", line="order of samples")


def training_chart(train: Sequence[Scalar], held_out: Sequence[Scalar]) -> alt.TopLevelMixin | None:
    """Draw a training's losses; those held out stand behind the minibatches before them."""
    times = [s.seconds for s in train]
    last_steps = list(accumulate((s.step for s in train), max, initial=-1))
    thinned = train[:: max(1, len(train) // _MOST_POINTS)]
    rows = [
        {"loss of": "training", "seconds": s.seconds, "minibatches": s.step, "loss": s.value}
        for s in thinned
    ] + [
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
        rows, "loss of", "seconds since the beginning, pauses and evaluations included"
    )


def _side_by_side(
    rows: Sequence[dict[str, object]], of: str, seconds: str, line: str = ""
) -> alt.TopLevelMixin | None:
    """Draw ``rows`` with a colour for each ``of``; those that differ in ``line`` are lines apart.

    ``seconds`` is the title of the axis of seconds.
    """
    if not rows:
        return None
    detail = {"detail": f"{line}:N"} if line else {}
    shown = [f"{of}:N", *([f"{line}:N"] if line else [])]

    legend = alt.Legend(orient="bottom", columns=2, labelLimit=0)

    def over(what: str, title: str) -> alt.Chart:
        return (
            alt.Chart(alt.Data(values=list(rows)), width=_WIDTH, height=_HEIGHT)
            .mark_line(point=len(rows) < 300, strokeWidth=1.2 if line else 2)
            .encode(
                x=alt.X(f"{what}:Q", title=title),
                y=alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False)),
                color=alt.Color(
                    f"{of}:N",
                    title=None,
                    legend=legend,
                ),
                tooltip=[*shown, f"{what}:Q", alt.Tooltip("loss:Q", format=".4f")],
                **detail,
            )
            .interactive(name=f"zoom_{what}")
        )

    return alt.hconcat(
        over("seconds", seconds),
        over("minibatches", "minibatches"),
        description="Loss over seconds and over minibatches",
    )
