"""Charts of measurements: the race, the search, where time goes, how well it was predicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp
from statistics import median

import altair as alt

from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.racing.comparison import Comparison
from drlpp.racing.contenders import Contender, usual_method
from drlpp.reporting.placement_tables import stages_text
from drlpp.reporting.run_files import RunFiles
from drlpp.simulator import simulate

_WIDTH = 680
_COMPUTING, _WAITING = "#2B87BF", "#A9AEB4"
"""Colours that colour-blind people tell apart, on light and on dark paper."""

Measured = Sequence[tuple[Candidate, Outcome]]


def names_of(contenders: Sequence[Contender]) -> tuple[str, ...]:
    """Return what charts and tables call contenders, in their order; no two have the same name."""
    names: dict[str, None] = {}
    method = usual_method(contenders)
    for contender in contenders:
        name = usual = f"{contender.found_by} · {contender.beside(method)}"
        number = 1
        while name in names:
            number += 1
            name = f"{usual} ({number})"
        names[name] = None
    return tuple(names)


def race_chart(comparison: Comparison) -> alt.TopLevelMixin | None:
    """Draw every round of every contender, and their medians; None if nothing was measured."""
    rows = [
        {
            "contender": name,
            "round": number + 1,
            "ms": 1e3 * seconds,
            "median": 1e3 * median(contender.seconds),
        }
        for name, contender in zip(names_of(comparison.distinct), comparison.distinct, strict=True)
        for number, seconds in enumerate(contender.seconds)
    ]
    if not rows:
        return None
    order = alt.EncodingSortField("median", order="ascending")
    y = alt.Y("contender:N", sort=order, title=None, axis=alt.Axis(labelLimit=260))
    base = alt.Chart(alt.Data(values=rows)).encode(y=y)
    rounds = base.mark_circle(size=60, opacity=0.75).encode(
        x=alt.X("ms:Q", title="milliseconds per minibatch", scale=alt.Scale(zero=False)),
        tooltip=["contender:N", "round:Q", alt.Tooltip("ms:Q", format=".3f")],
    )
    middle = base.mark_tick(thickness=3, size=22).encode(
        x="median:Q", tooltip=["contender:N", alt.Tooltip("median:Q", format=".3f")]
    )
    medians = sorted((float(str(row["median"])), str(row["contender"])) for row in rows)
    told = "; ".join(f"{name} {middle:.2f} ms" for middle, name in dict.fromkeys(medians))
    return alt.layer(
        rounds, middle, width=_WIDTH, description=f"Every round of the race, and medians: {told}"
    )


def search_chart(measured: Measured) -> alt.TopLevelMixin | None:
    """Draw the seconds of every measurement in turn, and the best so far."""
    rows: list[dict[str, object]] = []
    best = float("inf")
    for number, (candidate, outcome) in enumerate(measured, start=1):
        if isinstance(outcome, Measurement):
            best = min(best, outcome.seconds_per_minibatch)
            rows.append(
                {
                    "measurement": number,
                    "ms": 1e3 * outcome.seconds_per_minibatch,
                    "best": 1e3 * best,
                    "placement": candidate.configuration,
                    "stages": stages_text(candidate.placement),
                    "method": str(candidate.method),
                }
            )
    if not rows:
        return None
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X(
            "measurement:Q",
            title="measurement",
            axis=alt.Axis(tickMinStep=1, format="d"),
            scale=alt.Scale(zero=False, padding=12),
        )
    )
    points = base.mark_circle(size=50, opacity=0.75).encode(
        y=alt.Y("ms:Q", title="milliseconds per minibatch", scale=alt.Scale(zero=False)),
        tooltip=[
            "measurement:Q",
            "placement:N",
            "stages:N",
            "method:N",
            alt.Tooltip("ms:Q", format=".3f"),
        ],
    )
    line = base.mark_line(interpolate="step-after", strokeWidth=2).encode(y="best:Q")
    return alt.layer(
        points,
        line,
        width=_WIDTH,
        height=240,
        description=f"Every measurement, and the best so far: {len(rows)} measurements, from "
        f"{rows[0]['ms']:.2f} to {1e3 * best:.2f} ms",
    ).interactive()


def usage_chart(contenders: Iterable[tuple[str, Contender]]) -> alt.TopLevelMixin | None:
    """Draw what part of its time every worker computed, in the last round of each contender.

    Contenders come with their names.
    """
    rows: list[dict[str, object]] = []
    for name, contender in contenders:
        if contender.placement is None or not contender.measurements or contender.failure:
            continue
        last = contender.measurements[-1]
        for usage in last.workers:
            whole = last.seconds_per_minibatch * last.minibatches
            busy = usage.busy_seconds / whole if whole else 0.0
            for what, share in (("computing", busy), ("waiting", max(0.0, 1 - busy))):
                rows.append(
                    {
                        "contender": name,
                        "worker": f"worker {usage.worker} · stage {usage.stage}",
                        "what": what,
                        "share": share,
                        "memory": f"{usage.peak_memory_bytes / 1e6:,.0f} MB at most",
                    }
                )
    if not rows:
        return None
    colour = alt.Scale(domain=["computing", "waiting"], range=[_COMPUTING, _WAITING])
    names = list(dict.fromkeys(str(row["contender"]) for row in rows))
    told = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{row['worker']} {row['share']:.0%}"
            for row in rows
            if (row["contender"], row["what"]) == (name, "computing")
        )
        for name in names
    )
    return (
        alt.Chart(alt.Data(values=rows), width=_WIDTH - 60)
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="part of the time", axis=alt.Axis(format="%"), stack=True),
            y=alt.Y("worker:N", title=None),
            color=alt.Color("what:N", title=None, scale=colour),
            opacity=alt.condition(alt.datum.what == "waiting", alt.value(0.4), alt.value(1)),
            tooltip=["worker:N", "what:N", alt.Tooltip("share:Q", format=".1%"), "memory:N"],
        )
        .facet(
            facet=alt.Facet(
                "contender:N", title=None, sort=names, header=alt.Header(labelAnchor="start")
            ),
            columns=1,
        )
        .properties(description=f"What part of its time every worker computed: {told}")
        .resolve_scale(y="independent")
    )


def predictions(files: RunFiles) -> list[dict[str, object]]:
    """Return measured and simulated milliseconds of every candidate that both are known of.

    Simulated ones have an error bar, from ``least`` to ``most``.
    """
    if files.profile is None or files.cluster is None:
        return []
    rows: list[dict[str, object]] = []
    measured: dict[Candidate, list[float]] = {}
    for candidate, outcome in files.measured:
        if isinstance(outcome, Measurement):
            measured.setdefault(candidate, []).append(outcome.seconds_per_minibatch)
    for candidate, times in measured.items():
        workload = Workload.of(files.profile, candidate.method)
        simulation = simulate(workload, files.cluster, candidate.placement, candidate.method)
        seconds, error = simulation.seconds_per_minibatch, simulation.error_bar
        rows.append(
            {
                "placement": candidate.configuration,
                "measured": 1e3 * median(times),
                "simulated": 1e3 * seconds,
                "error bar": f"± {error:.0%}" if error else "not known",
                "least": 1e3 * seconds * exp(-error),
                "most": 1e3 * seconds * exp(error),
            }
        )
    return rows


def agreement_chart(rows: Sequence[dict[str, object]]) -> alt.TopLevelMixin | None:
    """Draw simulated against measured milliseconds, and the line on which they are equal."""
    if not rows:
        return None
    values = [float(str(row[key])) for row in rows for key in ("measured", "simulated")]
    ends = [{"x": limit, "y": limit} for limit in (min(values), max(values))]
    points = (
        alt.Chart()
        .mark_circle(size=60, opacity=0.7)
        .encode(
            x=alt.X("measured:Q", title="measured, ms", scale=alt.Scale(zero=False)),
            y=alt.Y("simulated:Q", title="simulated, ms", scale=alt.Scale(zero=False)),
            tooltip=[
                "placement:N",
                alt.Tooltip("measured:Q", format=".3f"),
                alt.Tooltip("simulated:Q", format=".3f"),
                "error bar:N",
            ],
        )
    )
    bars = alt.Chart().mark_rule(opacity=0.4).encode(x="measured:Q", y="least:Q", y2="most:Q")
    line = alt.Chart(alt.Data(values=ends)).mark_line(strokeDash=[4, 4]).encode(x="x:Q", y="y:Q")
    return alt.layer(
        line,
        alt.layer(bars, points, data=alt.Data(values=list(rows))),
        width=380,
        height=340,
        description=f"Simulated against measured times of {len(rows)} placements",
    )
