"""What a report says: a section for each question that the files of a run can answer."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from statistics import median
from typing import Any

import altair as alt

from drlpp.capturing.graph import OpGraph
from drlpp.comparison.comparison_file import Comparison
from drlpp.comparison.contenders import PLAIN
from drlpp.comparison.verdict import verdict_lines
from drlpp.errors import DRLPPError
from drlpp.io.formatting import seconds_text
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.reporting import loss_charts, pipeline_charts, speed_charts
from drlpp.reporting.run_files import RunFiles
from drlpp.reporting.speed_charts import name_of
from drlpp.training_race.judging import replay
from drlpp.training_race.judging import verdict_lines as race_lines

_FASTEST = 3
"""Contenders of the race that are drawn in detail: the winner and the next."""

Cell = str | tuple[float, str]
"""A text, or a number with the text that is shown for it."""


@dataclass(frozen=True)
class Table:
    """A table of a section; what is a number is sorted as one.

    Attributes:
        headings: of the columns.
        rows: their cells.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Attributes:
        title: the heading.
        lines: sentences above everything.
        chart: as Vega-Lite has it; None without one.
        table: under it.
        below: a sentence about what is shown.
    """

    title: str
    lines: tuple[str, ...] = ()
    chart: Mapping[str, Any] | None = None
    table: Table | None = None
    below: str = ""
    commands: tuple[str, ...] = ()


def sections_of(files: RunFiles) -> Iterator[Section]:
    """Yield the sections, the one that most people ask for first."""
    if files.comparison is not None:
        yield _race(files.comparison)
    if files.race is not None:
        yield _race_to_loss(files)
    if files.train_losses or files.held_out_losses:
        yield _training(files)
    if files.measured:
        yield _search(files)
        yield _placements(files)
    details = list(_details(files))
    yield from _pipelines(files, details)
    yield from _agreement(files)
    yield _machine(files)


def _race(comparison: Comparison) -> Section:
    verdict = comparison.verdict
    lines = () if verdict is None else tuple(verdict_lines(verdict, comparison.entrants))
    plain = next((c.seconds for c in comparison.contenders if c.found_by == PLAIN), ())
    rows: list[tuple[Cell, ...]] = []
    cells: tuple[Cell, ...]
    for contender in comparison.contenders:
        if contender.seconds:
            middle = median(contender.seconds)
            least, most = (seconds_text(end(contender.seconds)) for end in (min, max))
            ratio = median(plain) / middle if plain else None
            over_plain = "–" if ratio is None else (ratio, f"{ratio:.2f}×")
            cells = ((middle, seconds_text(middle)), f"{least} to {most}", over_plain)
        else:
            cells = (f"failed: {contender.failure}", "–", "–")
        method = "" if contender.placement is None else str(contender.method)
        rows.append((contender.found_by, contender.configuration, method, *cells))
    return Section(
        title="The race",
        lines=lines,
        chart=_drawn(speed_charts.race_chart(comparison)),
        table=Table(
            ("found by", "configuration", "method", "median", "range", "over plain PyTorch"),
            tuple(rows),
        ),
        below="Everybody ran in turns; a point is a round, a bar the median.",
    )


def _race_to_loss(files: RunFiles) -> Section:
    assert files.race is not None
    end = replay(files.race)
    lines = (
        (f"{len(files.race.runs)} trainings so far; the race has not ended",)
        if end is None
        else tuple(race_lines(files.race, end))
    )
    return Section(
        title=f"The race to a loss, on {files.race.data}",
        lines=lines,
        chart=_drawn(loss_charts.race_chart(files.race, end)),
        below="Held-out loss; seconds are those of training, without evaluations.",
    )


def _training(files: RunFiles) -> Section:
    steps = max((scalar.step for scalar in files.train_losses), default=0)
    epochs = max((scalar.step for scalar in files.held_out_losses), default=1)
    chart = loss_charts.training_chart(
        files.train_losses, files.held_out_losses, round((steps + 1) / max(epochs, 1))
    )
    lines = []
    if files.held_out_losses:
        last = files.held_out_losses[-1]
        lines.append(f"held-out loss {last.value:.4g} after epoch {last.step}")
    return Section(title="The training", lines=tuple(lines), chart=_drawn(chart))


def _search(files: RunFiles) -> Section:
    lines = () if files.microbatches is None else (str(files.microbatches),)
    return Section(
        title="The search",
        lines=lines,
        chart=_drawn(speed_charts.search_chart(files.measured)),
        below="Every measurement in turn; the line is the best so far.",
    )


def _placements(files: RunFiles) -> Section:
    rows: list[tuple[Cell, ...]] = []
    found: tuple[Cell, ...]
    for number, (candidate, outcome) in enumerate(files.measured, start=1):
        stages = "; ".join(
            f"{len(stage.operators)} operators on {', '.join(map(str, stage.accelerators))}"
            for stage in candidate.placement.stages
        )
        if isinstance(outcome, Measurement):
            seconds, deviation = outcome.seconds_per_minibatch, outcome.standard_deviation_seconds
            found = ((seconds, seconds_text(seconds)), (deviation, seconds_text(deviation)))
        else:
            found = (f"failed: {outcome.reason}", "–")
        method = str(candidate.method)
        rows.append(((number, str(number)), candidate.configuration, stages, method, *found))
    return Section(
        title="Every placement that was measured",
        table=Table(
            ("measured as", "configuration", "stages", "method", "a minibatch", "deviation"),
            tuple(rows),
        ),
        below="A click on a heading sorts.",
    )


def _details(files: RunFiles) -> Iterator[tuple[str, Candidate]]:
    """Yield who is drawn in detail: of a race the fastest, else the placement of the folder."""
    if files.comparison is not None:
        ran = [c for c in files.comparison.contenders if c.seconds and c.candidate is not None]
        rounds = max((len(c.seconds) for c in ran), default=0)
        ran.sort(key=lambda c: (len(c.seconds) < rounds, median(c.seconds)))
        known: set[Candidate] = set()
        for contender in ran:
            candidate = contender.candidate
            if candidate is not None and candidate not in known and len(known) < _FASTEST:
                known.add(candidate)
                yield name_of(contender), candidate
    elif files.placement is not None and files.profile is not None:
        by_name = {op.name: op.id for op in files.profile.graph.operators}
        stages = files.placement.stages
        if all(name in by_name for stage in stages for name in stage.operators):
            placement = Placement.model_validate(
                {
                    "stages": [
                        {
                            "operators": [by_name[name] for name in stage.operators],
                            "accelerators": stage.accelerators,
                        }
                        for stage in stages
                    ]
                }
            )
            yield files.placement.configuration, Candidate(placement, files.placement.method)


def _pipelines(files: RunFiles, details: Sequence[tuple[str, Candidate]]) -> Iterator[Section]:
    contenders = () if files.comparison is None else files.comparison.contenders
    drawn = {name for name, _ in details}
    usage = speed_charts.usage_chart(c for c in contenders if name_of(c) in drawn)
    if usage is not None:
        yield Section(
            title="Where the time goes",
            chart=_drawn(usage),
            below="Measured, in the last round of each; a worker that waits has nothing to do yet.",
        )
    if files.profile is None or not details:
        return
    graph = files.profile.graph
    name, candidate = details[0]
    yield Section(
        title="The model, by stage",
        lines=(f"{name}: {len(graph)} operators in {len(candidate.placement.stages)} stages",),
        chart=_drawn(pipeline_charts.graph_chart(graph, candidate.placement, files.profile)),
        table=_stages(graph, candidate.placement, files),
        below="Scroll to zoom, drag to move. Many operators are drawn as the module they are in.",
    )
    late = pipeline_charts.staleness_chart(
        (name, candidate, candidate.placement.pipeline(graph)) for name, candidate in details
    )
    if late is not None:
        yield Section(
            title="How late gradients are",
            chart=_drawn(late),
            below="Updates between the forward and the backward of a minibatch, in the mean; none "
            "where the schedule flushes.",
        )
    if files.cluster is not None:
        try:
            timelines = pipeline_charts.timeline_chart(details, files.profile, files.cluster)
        except DRLPPError:
            # Of a cluster that somebody has changed.
            return
        yield Section(
            title="Who does what when",
            chart=_drawn(timelines),
            below="Simulated with the profile of this run: a few minibatches in steady state. "
            "Scroll to zoom all of them.",
        )


def _stages(graph: OpGraph, placement: Placement, files: RunFiles) -> Table:
    assert files.profile is not None
    rows: list[tuple[Cell, ...]] = []
    for number, stage in enumerate(placement.stages):
        size = sum(graph.operators[op].parameter_bytes for op in stage.operators)
        seconds = sum(files.profile.seconds[op] for op in stage.operators)
        first, last = (graph.operators[op].name for op in (stage.operators[0], stage.operators[-1]))
        rows.append(
            (
                (number, str(number)),
                ", ".join(map(str, stage.accelerators)),
                (len(stage.operators), str(len(stage.operators))),
                f"{first} to {last}",
                (size, f"{size / 1e6:,.2f} MB"),
                (seconds, seconds_text(seconds)),
            )
        )
    headings = ("stage", "accelerators", "operators", "from, to", "parameters", "profiled")
    return Table(headings, tuple(rows))


def _agreement(files: RunFiles) -> Iterator[Section]:
    rows = speed_charts.predictions(files)
    if not rows:
        return
    errors = sorted(
        abs(float(str(row["simulated"])) / float(str(row["measured"])) - 1) for row in rows
    )
    yield Section(
        title="Predicted and measured",
        lines=(
            f"the simulator is off by {median(errors):.0%} in the median of {len(rows)} "
            f"placements, by {errors[-1]:.0%} at most",
        ),
        chart=_drawn(speed_charts.agreement_chart(rows)),
        below="On the line both are equal.",
    )


def _machine(files: RunFiles) -> Section:
    settings = tuple(
        (name, json.dumps(value, ensure_ascii=False))
        for name, value in sorted(files.record.settings.items())
    )
    versions = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("drlpp", "torch") if _installed(name)
    )
    lines = [f"report written with {versions}, Python {platform.python_version()}"]
    if files.placement is not None:
        measured = files.placement.versions
        lines.append(f"measured with drlpp {measured.drlpp}, torch {measured.torch}")
    if files.cluster is not None:
        hosts = ", ".join(
            f"{host.count * host.accelerators} × {host.device}"
            f"{'' if host.speed == 1 else f' of speed {host.speed:g}'}"
            for host in files.cluster.hosts
        )
        lines.append(f"accelerators: {hosts}")
    lines += [f"not read: {why}" for why in files.unread.values()]
    commands = [files.record.started_as] if files.record.started_as else []
    if files.placement is not None and (files.folder / "placement.json").is_file():
        commands.append(f"drlpp train {shlex.quote(str(files.folder / 'placement.json'))}")
    return Section(
        title="Machine, versions, settings",
        lines=tuple(lines),
        table=Table(("setting", "value"), settings),
        commands=tuple(commands),
    )


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _drawn(chart: alt.TopLevelMixin | None) -> Mapping[str, Any] | None:
    return None if chart is None else chart.to_dict()
