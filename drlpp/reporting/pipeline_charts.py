"""Charts of pipelines: the model coloured by stage, who does what when, how late gradients are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import altair as alt

from drlpp.capturing.graph import OpGraph
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.io.formatting import predicted_text
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.schedule.actions import WAITING
from drlpp.schedule.pipeline import Pipeline
from drlpp.simulator import Simulation, simulate
from drlpp.specs.cluster import Cluster
from drlpp.timeline.spans import KINDS, Span, spans_of

_WIDTH = 680
_MOST_NODES = 150
_MOST_SPANS = 1500
_MOST_MINIBATCHES = 6


@dataclass(frozen=True)
class Node:
    """Operators of a stage that are drawn as one.

    Attributes:
        name: of the only operator, or of what they have in common.
        stage: that they are in.
        operators: how many.
        parameter_bytes: of all of them.
        seconds: forward and backward, by the profile; None without one.
    """

    name: str
    stage: int
    operators: tuple[int, ...]
    parameter_bytes: int
    seconds: float | None


def folded(graph: OpGraph, placement: Placement, profile: Profile | None) -> list[Node]:
    """Return what is drawn of a graph: operators, or modules where there are too many of these.

    Names are cut at fewer and fewer dots until neighbours of the same name and stage make no more
    than are readable.
    """
    stage_of = placement.stage_of_operator(len(graph))
    for depth in (100, 4, 3, 2, 1):
        groups: list[tuple[str, int, list[int]]] = []
        for operator in graph.operators:
            path = operator.module.split(".")
            whole = depth == 100 or len(path) <= depth
            name = operator.name if depth == 100 else ".".join(path[:depth] if not whole else path)
            same = groups and groups[-1][:2] == (name, stage_of[operator.id])
            if same and depth != 100:
                groups[-1][2].append(operator.id)
            else:
                groups.append((name, stage_of[operator.id], [operator.id]))
        if len(groups) <= _MOST_NODES:
            break
    return [
        Node(
            name=name or "the model itself",
            stage=stage,
            operators=tuple(operators),
            parameter_bytes=sum(graph.operators[op].parameter_bytes for op in operators),
            seconds=None if profile is None else sum(profile.seconds[op] for op in operators),
        )
        for name, stage, operators in groups
    ]


def graph_chart(
    graph: OpGraph, placement: Placement, profile: Profile | None = None
) -> alt.TopLevelMixin:
    """Draw the model from left to right, coloured by stage; it can be zoomed and moved."""
    nodes = folded(graph, placement, profile)
    node_of = {op: number for number, node in enumerate(nodes) for op in node.operators}
    pairs = {(node_of[edge.source], node_of[edge.target]) for edge in graph.edges}
    edges = sorted(pair for pair in pairs if pair[0] < pair[1])
    places = _places(len(nodes), edges)
    rows = [
        {
            "name": node.name,
            "stage": f"stage {node.stage}",
            "x": x,
            "y": y,
            "operators": len(node.operators),
            "parameters": f"{node.parameter_bytes / 1e6:,.2f} MB",
            "ms": "not profiled" if node.seconds is None else f"{1e3 * node.seconds:.3f}",
        }
        for node, (x, y) in zip(nodes, places, strict=True)
    ]
    lines = [
        {
            "x": places[source][0],
            "y": places[source][1],
            "x2": places[target][0],
            "y2": places[target][1],
        }
        for source, target in edges
    ]
    axis = alt.Axis(labels=False, ticks=False, domain=False, grid=False)
    room = alt.Scale(padding=14, nice=False, zero=False)
    x = alt.X("x:Q", title=None, axis=axis, scale=room)
    y = alt.Y("y:Q", title=None, axis=axis, scale=room)
    beside = max(Counter(level for level, _ in places).values())
    rules = (
        alt.Chart(alt.Data(values=lines))
        .mark_rule(opacity=0.35)
        .encode(x=x, y=y, x2="x2:Q", y2="y2:Q")
    )
    points = (
        alt.Chart(alt.Data(values=rows))
        .mark_circle(size=110, opacity=1)
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "stage:N", title=None, scale=alt.Scale(scheme="tableau10"), sort=_stages(placement)
            ),
            tooltip=["name:N", "stage:N", "operators:Q", "parameters:N", "ms:N"],
        )
    )
    return alt.layer(
        rules,
        points,
        width=_WIDTH,
        height=min(60 + 30 * beside, 420),
        description=f"The model, by stage: {len(nodes)} operators or modules in "
        f"{len(placement.stages)} stages",
    ).interactive()


def _stages(placement: Placement) -> list[str]:
    return [f"stage {number}" for number in range(len(placement.stages))]


def _places(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Return a place for each node: as far right as its longest way, side by side where equal."""
    level = [0] * count
    for source, target in edges:
        level[target] = max(level[target], level[source] + 1)
    rows: dict[int, list[int]] = {}
    for node in range(count):
        rows.setdefault(level[node], []).append(node)
    return [
        (float(level[node]), rows[level[node]].index(node) - (len(rows[level[node]]) - 1) / 2)
        for node in range(count)
    ]


def timeline_chart(
    candidates: Iterable[tuple[str, Candidate]], profile: Profile, cluster: Cluster
) -> tuple[alt.TopLevelMixin | None, int]:
    """Draw a few minibatches of each candidate in steady state, simulated, with one time axis.

    Returns:
        The chart, and of how many minibatches: fewer where a browser could not draw all spans, but
        always those of all workers.
    """
    simulated = [
        (
            name,
            simulate(Workload.of(profile, c.method), cluster, c.placement, c.method),
        )
        for name, c in candidates
    ]
    windows = [_Window.of(simulation) for _, simulation in simulated]
    minibatches = _MOST_MINIBATCHES
    while minibatches > 1 and any(len(w.spans(minibatches)) > _MOST_SPANS for w in windows):
        minibatches -= 1
    rows = [
        _bar(name, span, simulation.pipeline, window.begin, window.length(minibatches))
        for (name, simulation), window in zip(simulated, windows, strict=True)
        for span in window.spans(minibatches)
    ]
    if not rows:
        return None, minibatches
    told = "; ".join(
        f"{name} takes "
        f"{predicted_text(simulation.seconds_per_minibatch, simulation.error_bar)} for a minibatch"
        for name, simulation in simulated
    )
    known = [kind for kind in KINDS if any(row["kind"] == kind.label for row in rows)]
    colour = alt.Scale(domain=[k.label for k in known], range=[k.colour for k in known])
    # Of interval selections on one axis, one zooms all rows.
    zoom = alt.selection_interval(bind="scales", encodings=["x"])
    bars = (
        alt.Chart(alt.Data(values=rows), width=_WIDTH - 60)
        .mark_bar(height={"band": 0.9})
        .encode(
            x=alt.X("start:Q", title="milliseconds"),
            x2="end:Q",
            y=alt.Y("worker:N", title=None),
            color=alt.Color("kind:N", title=None, scale=colour),
            # On dark paper the light grey of waiting would outshine the work.
            opacity=alt.condition(alt.datum.kind == WAITING.label, alt.value(0.45), alt.value(1)),
            tooltip=["worker:N", "kind:N", "minibatch:N", alt.Tooltip("ms:Q", format=".3f")],
        )
        .add_params(zoom)
    )
    chart = (
        bars.facet(
            facet=alt.Facet(
                "candidate:N",
                title=None,
                sort=[name for name, _ in simulated],
                header=alt.Header(labelAnchor="start"),
            ),
            columns=1,
        )
        .properties(description=f"Who does what when, simulated timelines: {told}")
        .resolve_scale(y="independent")
    )
    return chart, minibatches


@dataclass(frozen=True)
class _Window:
    """A simulation's spans from its middle on."""

    begin: float
    seconds_per_minibatch: float
    all_spans: tuple[Span, ...]

    @classmethod
    def of(cls, simulation: Simulation) -> _Window:
        begin = (simulation.completions[0] + simulation.completions[-1]) / 2
        spans = tuple(s for s in spans_of(simulation.timeline) if s.end > begin and s.seconds > 0)
        return cls(begin, simulation.seconds_per_minibatch, spans)

    def length(self, minibatches: int) -> float:
        return minibatches * self.seconds_per_minibatch

    def spans(self, minibatches: int) -> list[Span]:
        end = self.begin + self.length(minibatches)
        return [span for span in self.all_spans if span.start < end]


def _bar(
    name: str, span: Span, pipeline: Pipeline, begin: float, length: float
) -> dict[str, object]:
    stages = pipeline.stages_by_worker[span.worker]
    return {
        "candidate": name,
        "worker": f"stage {', '.join(map(str, stages))} · worker {span.worker}",
        "kind": span.kind.label,
        "minibatch": span.number,
        "start": 1e3 * (max(span.start, begin) - begin),
        "end": 1e3 * (min(span.end, begin + length) - begin),
        "ms": 1e3 * span.seconds,
    }


def staleness_chart(
    candidates: Iterable[tuple[str, Candidate, Pipeline]],
) -> alt.TopLevelMixin | None:
    """Draw how many updates come between forward and backward on every stage, on average."""
    rows = [
        {
            "candidate": name,
            "stage": f"stage {stage}",
            "updates": parts / candidate.method.parts_of_update(len(workers)),
        }
        for name, candidate, pipeline in candidates
        if not candidate.method.flushes
        for stage, (parts, workers) in enumerate(
            zip(candidate.method.parts_in_between(pipeline), pipeline.stages, strict=True)
        )
    ]
    if not any(row["updates"] for row in rows):
        return None
    names = list(dict.fromkeys(str(row["candidate"]) for row in rows))
    told = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{row['stage']} {row['updates']:.3g}" for row in rows if row["candidate"] == name
        )
        for name in names
    )
    return (
        alt.Chart(alt.Data(values=rows), width=_WIDTH - 60)
        .mark_bar()
        .encode(
            x=alt.X("updates:Q", title="updates between forward and backward"),
            y=alt.Y("stage:N", title=None),
            tooltip=["candidate:N", "stage:N", alt.Tooltip("updates:Q", format=".2f")],
        )
        .facet(
            facet=alt.Facet(
                "candidate:N", title=None, sort=names, header=alt.Header(labelAnchor="start")
            ),
            columns=1,
        )
        .properties(description=f"How late gradients are, by stage: {told}")
        .resolve_scale(y="independent")
    )
