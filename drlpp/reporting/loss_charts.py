"""Charts of losses: over seconds and over minibatches, of a race or of one training."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from drlpp.reporting.run_files import Scalar
from drlpp.reporting.speed_charts import name_of
from drlpp.training_race.judging import RaceEnd
from drlpp.training_race.training_race_file import TrainingRace

_WIDTH, _HEIGHT = 320, 280
_MOST_POINTS = 1000


def race_chart(race: TrainingRace, end: RaceEnd | None) -> alt.TopLevelMixin | None:
    """Draw the held-out loss of every candidate's best training, over seconds and minibatches."""
    best = {} if end is None else end.result.rates
    rows = []
    for run in race.runs:
        rate = best.get(run.candidate)
        if run.seed or (rate is not None and run.rate != rate):
            continue
        name = name_of(race.candidates[run.candidate])
        if rate is None:
            name += f", rate {run.rate:.2g}"
        rows += [
            {
                "candidate": name,
                "seconds": point.seconds,
                "minibatches": point.minibatches,
                "loss": point.loss,
            }
            for point in run.curve.points
            if point.loss is not None
        ]
    return _side_by_side(rows, "candidate")


def training_chart(
    train: Sequence[Scalar], held_out: Sequence[Scalar], minibatches_of_epoch: int
) -> alt.TopLevelMixin | None:
    """Draw a training's losses; those held out stand behind the minibatches of their epochs."""
    thinned = train[:: max(1, len(train) // _MOST_POINTS)]
    rows = [
        {"loss of": "training", "seconds": s.seconds, "minibatches": s.step, "loss": s.value}
        for s in thinned
    ] + [
        {
            "loss of": "held-out samples",
            "seconds": s.seconds,
            "minibatches": s.step * minibatches_of_epoch,
            "loss": s.value,
        }
        for s in held_out
    ]
    return _side_by_side(rows, "loss of")


def _side_by_side(rows: Sequence[dict[str, object]], of: str) -> alt.TopLevelMixin | None:
    if not rows:
        return None

    legend = alt.Legend(orient="bottom", columns=2, labelLimit=0)

    def over(what: str, title: str) -> alt.Chart:
        return (
            alt.Chart(alt.Data(values=list(rows)), width=_WIDTH, height=_HEIGHT)
            .mark_line(point=len(rows) < 300)
            .encode(
                x=alt.X(f"{what}:Q", title=title),
                y=alt.Y("loss:Q", title="loss", scale=alt.Scale(zero=False)),
                color=alt.Color(
                    f"{of}:N",
                    title=None,
                    legend=legend,
                ),
                tooltip=[f"{of}:N", f"{what}:Q", alt.Tooltip("loss:Q", format=".4f")],
            )
            .interactive(name=f"zoom_{what}")
        )

    return alt.hconcat(
        over("seconds", "seconds of training"),
        over("minibatches", "minibatches"),
        description="Loss over seconds and over minibatches",
    )
