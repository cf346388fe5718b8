"""What a report says: a section for each question that the files of a run can answer."""

from __future__ import annotations

import json
import math
import platform
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from statistics import median
from typing import Any

import altair as alt

from drlpp.errors import DRLPPError, RunFailure
from drlpp.io.formatting import emulation_text, range_text, seconds_text, speeds_option
from drlpp.racing.contenders import update_text
from drlpp.racing.rivals import PLAIN
from drlpp.racing.training_race import race_lines as race_lines
from drlpp.racing.training_race import replay
from drlpp.racing.verdict import verdict_lines
from drlpp.reporting import loss_charts, pipeline_charts, speed_charts
from drlpp.reporting.in_detail import alone, details_of
from drlpp.reporting.placement_tables import Cell, Table, measured_table, stages_table
from drlpp.reporting.run_files import RunFiles


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
    if files.placement is not None:
        exported = files.placement
        by, how = exported.found_by, exported.method
        lines = (*lines, f"exported: {exported.configuration}, found by {by}; {how}")
    plain = next((c.seconds for c in comparison.contenders if c.found_by == PLAIN), ())
    rows: list[tuple[Cell, ...]] = []
    cells: tuple[Cell, ...]
    names = speed_charts.names_of(comparison.distinct)
    ranked = sorted(
        zip(names, comparison.distinct, strict=True),
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
        rows.append((name, method, update_text(contender), *cells))
    yield Section(
        title="The race",
        lines=lines,
        chart=_drawn(speed_charts.race_chart(comparison)),
        table=Table(
            (
                "contender",
                "method",
                "minibatches an update",
                "median",
                "range",
                "over plain PyTorch",
            ),
            tuple(rows),
        ),
        below="All ran in turns; a point is a round, a bar the median.",
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
    batch = None if files.profile is None else files.profile.batch_size
    yield Section(
        title=f"The race to a loss, on {files.race.data}",
        lines=lines,
        chart=_drawn(loss_charts.race_chart(files.race, end, batch)),
        below="Held-out loss, a line for every training, dashed for plain PyTorch; seconds are "
        "those of training, without evaluations.",
    )


def _training(files: RunFiles) -> Iterator[Section]:
    chart = loss_charts.training_chart(files.train_losses, files.held_out_losses, files.batch_size)
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
    lines = [] if files.microbatches is None else [str(files.microbatches)]
    lines += [] if files.search is None else files.search.lines
    yield Section(
        title="The search",
        lines=tuple(lines),
        chart=_drawn(speed_charts.search_chart(files.measured)),
        below="Every measurement in turn; the line is the best so far.",
    )


def _placements(files: RunFiles) -> Iterator[Section]:
    if files.measured:
        yield Section(
            title="Every placement that was measured",
            table=measured_table(files.measured, files.profile),
            below="A click on a heading sorts. A row shows its stages under the mouse, or when its "
            "configuration is tapped or has the focus.",
        )


def _usage(files: RunFiles) -> Iterator[Section]:
    usage = speed_charts.usage_chart(
        (detail.name, detail.contender)
        for detail in details_of(files)
        if detail.contender is not None
    )
    if usage is not None:
        yield Section(
            title="Where the time goes",
            chart=_drawn(usage),
            below="Measured, in the last round of the best of each kind; a worker that waits has "
            "nothing to do yet.",
        )


def _model(files: RunFiles) -> Iterator[Section]:
    if files.profile is None:
        return
    graph = files.profile.graph
    for detail in details_of(files)[:1]:
        placement = detail.candidate.placement
        yield Section(
            title="The model, by stage",
            lines=(f"{detail.name}: {len(graph)} operators in {len(placement.stages)} stages",),
            chart=_drawn(pipeline_charts.graph_chart(graph, placement, files.profile)),
            table=stages_table(placement, files.profile),
            below="With a mouse, scroll to zoom and drag to move. Many operators are drawn as the "
            "module they are in.",
        )


def _staleness(files: RunFiles) -> Iterator[Section]:
    if files.profile is None:
        return
    graph = files.profile.graph
    late = pipeline_charts.staleness_chart(
        (detail.name, detail.candidate, detail.candidate.placement.pipeline(graph))
        for detail in details_of(files)
    )
    if late is not None:
        yield Section(
            title="How late gradients are",
            chart=_drawn(late),
            below="Updates between the forward and the backward of a minibatch, in the mean; none "
            "where the schedule flushes.",
        )


def _timelines(files: RunFiles) -> Iterator[Section]:
    cluster = files.placed_on
    if files.profile is None or cluster is None:
        return
    shown = details_of(files)
    if shown and not any(d.contender is not None and d.contender.is_rival for d in shown):
        shown = (*shown, alone(files.profile.graph, cluster))
    timelines, minibatches = pipeline_charts.timeline_chart(
        [(detail.name, detail.candidate) for detail in shown], files.profile, cluster
    )
    if timelines is not None:
        count = "a minibatch" if minibatches == 1 else f"{minibatches} minibatches"
        yield Section(
            title="Who does what when",
            chart=_drawn(timelines),
            below=f"The best of each kind, simulated with the profile of this run: {count} in "
            "steady state, so who is done sooner is faster. With a mouse, scroll to zoom all.",
        )


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
        below="On the line both are equal. Bars show how far off the simulator may be, where short "
        "runs of a pipeline told it.",
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
    if files.microbatches is not None:
        chosen = files.microbatches.best.microbatches
        lines.append(f"microbatches were chosen by measuring, whatever the settings say: {chosen}")
    lines += [f"not read: {why}" for why in files.unread.values()]
    lines += missing
    commands = [files.record.started_as] if files.record.started_as else []
    if files.placement is not None and (files.folder / "placement.json").is_file():
        speeds = () if files.comparison is None else files.comparison.speeds
        path = shlex.quote(str(files.folder / "placement.json"))
        model = files.placement.model.naming_option
        commands.append(f"drlpp train {path}{model} --data DATA{speeds_option(speeds)}")
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
