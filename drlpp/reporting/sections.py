"""What a report says: a section for each question that the files of a run can answer."""

from __future__ import annotations

import json
import math
import platform
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from statistics import median
from typing import Any

import altair as alt

from drlpp.capturing.graph import OpGraph
from drlpp.comparison.contenders import PLAIN
from drlpp.comparison.verdict import verdict_lines
from drlpp.costs.profile import Profile
from drlpp.errors import DRLPPError, RunFailure
from drlpp.io.formatting import emulation_text, range_text, seconds_text
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.reporting import loss_charts, pipeline_charts, speed_charts
from drlpp.reporting.run_files import RunFiles
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
    """Yield the sections, the one that most people ask for first.

    A section that cannot be made of these files is named in the last.
    """
    parts: dict[str, Callable[[RunFiles], Iterator[Section]]] = {
        "the race": _race,
        "the race to a loss": _race_to_loss,
        "the training": _training,
        "the search": _search,
        "every placement that was measured": _placements,
        "where the time goes": _usage,
        "the model, by stage": _model,
        "how late gradients are": _staleness,
        "who does what when": _timelines,
        "predicted and measured": _agreement,
    }
    missing = []
    for what, make in parts.items():
        try:
            yield from list(make(files))
        except (DRLPPError, ValueError, IndexError, KeyError) as error:
            missing.append(f"not shown: {what} ({error})")
    yield _machine(files, missing)


def _race(files: RunFiles) -> Iterator[Section]:
    comparison = files.comparison
    if comparison is None:
        return
    verdict = comparison.verdict
    lines = () if verdict is None else tuple(verdict_lines(verdict, comparison.entrants))
    if comparison.speeds:
        lines = (*lines, emulation_text(comparison.speeds))
    plain = next((c.seconds for c in comparison.contenders if c.found_by == PLAIN), ())
    rows: list[tuple[Cell, ...]] = []
    cells: tuple[Cell, ...]
    names = speed_charts.names_of(comparison.contenders)
    ranked = sorted(
        zip(names, comparison.contenders, strict=True),
        key=lambda named: median(named[1].seconds or [math.inf]),
    )
    for name, contender in ranked:
        if contender.seconds:
            middle = median(contender.seconds)
            least, most = min(contender.seconds), max(contender.seconds)
            ratio = median(plain) / middle if plain else None
            over_plain = "–" if ratio is None else (ratio, f"{ratio:.2f}×")
            cells = ((middle, seconds_text(middle)), (least, range_text(least, most)), over_plain)
        else:
            cells = (f"failed: {contender.failure}", "–", "–")
        method = "" if contender.placement is None else str(contender.method)
        rows.append((name, method, *cells))
    yield Section(
        title="The race",
        lines=lines,
        chart=_drawn(speed_charts.race_chart(comparison)),
        table=Table(
            ("contender", "method", "median", "range", "over plain PyTorch"),
            tuple(rows),
        ),
        below="Everybody ran in turns; a point is a round, a bar the median.",
    )


def _race_to_loss(files: RunFiles) -> Iterator[Section]:
    if files.race is None:
        return
    lines: tuple[str, ...]
    try:
        end = replay(files.race)
    except RunFailure as error:
        end, lines = None, (f"the race failed: {error}",)
    else:
        lines = (
            (f"{len(files.race.runs)} trainings so far; the race has not ended",)
            if end is None
            else tuple(race_lines(files.race, end))
        )
    yield Section(
        title=f"The race to a loss, on {files.race.data}",
        lines=lines,
        chart=_drawn(loss_charts.race_chart(files.race, end)),
        below="Held-out loss, a line for every training; seconds are those of training, without "
        "evaluations.",
    )


def _training(files: RunFiles) -> Iterator[Section]:
    chart = loss_charts.training_chart(files.train_losses, files.held_out_losses)
    if chart is None:
        return
    lines = []
    if files.held_out_losses:
        last = files.held_out_losses[-1]
        lines.append(f"held-out loss {last.value:.4g} after epoch {last.step}")
    lines += [change.text for change in files.changes]
    yield Section(title="The training", lines=tuple(lines), chart=_drawn(chart))


def _search(files: RunFiles) -> Iterator[Section]:
    if not files.measured:
        return
    lines = () if files.microbatches is None else (str(files.microbatches),)
    yield Section(
        title="The search",
        lines=lines,
        chart=_drawn(speed_charts.search_chart(files.measured)),
        below="Every measurement in turn; the line is the best so far.",
    )


def _placements(files: RunFiles) -> Iterator[Section]:
    if not files.measured:
        return
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
    yield Section(
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
        contenders = files.comparison.contenders
        ran = [
            (name, contender.seconds, contender.candidate)
            for name, contender in zip(speed_charts.names_of(contenders), contenders, strict=True)
            if contender.seconds and contender.candidate is not None
        ]
        rounds = max((len(seconds) for _, seconds, _ in ran), default=0)
        ran.sort(key=lambda one: (len(one[1]) < rounds, median(one[1])))
        known: set[Candidate] = set()
        for name, _, candidate in ran:
            if candidate not in known and len(known) < _FASTEST:
                known.add(candidate)
                yield name, candidate
    elif files.placement is not None and files.profile is not None:
        placement = files.placement.resolve(files.profile.graph)
        yield files.placement.configuration, Candidate(placement, files.placement.method)


def _usage(files: RunFiles) -> Iterator[Section]:
    contenders = () if files.comparison is None else files.comparison.contenders
    drawn = {name for name, _ in _details(files)}
    named = zip(speed_charts.names_of(contenders), contenders, strict=True)
    usage = speed_charts.usage_chart((name, c) for name, c in named if name in drawn)
    if usage is not None:
        yield Section(
            title="Where the time goes",
            chart=_drawn(usage),
            below="Measured, in the last round of each; a worker that waits has nothing to do yet.",
        )


def _model(files: RunFiles) -> Iterator[Section]:
    if files.profile is None:
        return
    graph = files.profile.graph
    for name, candidate in islice(_details(files), 1):
        placement = candidate.placement
        yield Section(
            title="The model, by stage",
            lines=(f"{name}: {len(graph)} operators in {len(placement.stages)} stages",),
            chart=_drawn(pipeline_charts.graph_chart(graph, placement, files.profile)),
            table=_stages(graph, placement, files.profile),
            below="Scroll to zoom, drag to move. Many operators are drawn as the module they are "
            "in.",
        )


def _staleness(files: RunFiles) -> Iterator[Section]:
    if files.profile is None:
        return
    graph = files.profile.graph
    late = pipeline_charts.staleness_chart(
        (name, candidate, candidate.placement.pipeline(graph))
        for name, candidate in _details(files)
    )
    if late is not None:
        yield Section(
            title="How late gradients are",
            chart=_drawn(late),
            below="Updates between the forward and the backward of a minibatch, in the mean; none "
            "where the schedule flushes.",
        )


def _timelines(files: RunFiles) -> Iterator[Section]:
    if files.profile is None or files.cluster is None:
        return
    timelines, minibatches = pipeline_charts.timeline_chart(
        _details(files), files.profile, files.cluster
    )
    if timelines is not None:
        shown = "a minibatch" if minibatches == 1 else f"{minibatches} minibatches"
        yield Section(
            title="Who does what when",
            chart=_drawn(timelines),
            below=f"Simulated with the profile of this run: {shown} in steady state. Scroll to "
            "zoom all of them.",
        )


def _stages(graph: OpGraph, placement: Placement, profile: Profile) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for number, stage in enumerate(placement.stages):
        size = sum(graph.operators[op].parameter_bytes for op in stage.operators)
        seconds = sum(profile.seconds[op] for op in stage.operators)
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


def _machine(files: RunFiles, missing: Sequence[str]) -> Section:
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
    lines += missing
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
