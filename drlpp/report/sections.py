"""What a report says: a section for each question that the files of a run can answer."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.figure import Figure

from drlpp.errors import DRLPPError, InvalidPlacement
from drlpp.io.formatting import emulation_text, seconds_text, speeds_option
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement_file import Versions
from drlpp.report import charts
from drlpp.report.run_files import RunFiles
from drlpp.report.tables import (
    Table,
    comparison_table,
    measured_table,
    race_table,
    told_of_race,
)


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Attributes:
        title: the heading.
        lines: sentences above everything.
        chart: under them; None without one.
        told: what the chart shows, for screen readers.
        table: under it.
        commands: that lead on.
        below: a sentence about what is shown.
    """

    title: str
    lines: tuple[str, ...] = ()
    chart: Figure | None = None
    told: str = ""
    table: Table | None = None
    commands: tuple[str, ...] = ()
    below: str = ""


def sections_of(files: RunFiles) -> Iterator[Section]:
    """Yield the sections, the one that most people ask for first.

    A section that cannot be made of these files is named in the last.
    """
    parts: dict[str, Callable[[RunFiles], Iterator[Section]]] = {
        "the race to a loss": _race_to_loss,
        "the race": _race,
        "the search": _search,
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
    lines = [] if verdict is None else list(verdict.lines())
    lines += [f"{one.found_by}: {one.failure}" for one in comparison.contenders if one.failure]
    if comparison.speeds:
        lines.append(emulation_text(comparison.speeds))
    if files.placement is not None:
        exported = files.placement
        by, how = exported.found_by, exported.method
        lines.append(f"exported: {exported.configuration}, found by {by}; {how}")
    table = comparison_table(comparison)
    yield Section(
        title="The race",
        lines=tuple(lines),
        chart=charts.race_chart(comparison),
        told="Every round of the race, and medians: "
        + "; ".join(f"{row[0]} {row[1]} {row[2]}" for row in table.rows),
        table=table,
        below="All ran in turns; a point is a round, a bar the median.",
    )


def _race_to_loss(files: RunFiles) -> Iterator[Section]:
    race = files.race
    if race is None:
        return
    end, lines = told_of_race(race)
    batch_size = None if files.profile is None else files.profile.batch_size
    yield Section(
        title=f"The race to a loss, on {race.data}",
        lines=tuple(lines),
        chart=charts.loss_chart(race, end, batch_size),
        told=f"Held-out loss of {len(race.candidates)} candidates over seconds and samples",
        table=None if end is None else race_table(race, end),
        below="Held-out loss, a line for every training, dashed for plain PyTorch; seconds are "
        "those of training, without evaluations.",
    )


def _search(files: RunFiles) -> Iterator[Section]:
    if not files.measured:
        return
    lines = [] if files.microbatches is None else [str(files.microbatches)]
    lines += [] if files.search is None else files.search.lines
    ran = [one for _, one in files.measured if isinstance(one, Measurement)]
    best = min((one.seconds_per_minibatch for one in ran), default=0.0)
    try:
        errors = charts.prediction_errors(files)
    except InvalidPlacement as error:
        errors = []
        lines.append(
            f"not compared with the simulator: {error}; profile.json and cluster.yaml have to be "
            "those that the run began with"
        )
    if errors:
        lines.append(
            f"the simulator is off by {median(errors):.0%} in the median of {len(errors)} "
            f"placements, by {max(errors):.0%} at most"
        )
    yield Section(
        title="The search",
        lines=tuple(lines),
        chart=charts.search_chart(files.measured),
        told=f"{len(files.measured)} measurements, the best of {seconds_text(best)}",
        table=measured_table(files.measured),
        below="Every measurement in turn; the line is the best so far.",
    )


def _machine(files: RunFiles, missing: Sequence[str]) -> Section:
    settings = tuple(
        (name, json.dumps(value, ensure_ascii=False))
        for name, value in sorted(files.record.settings.items())
    )
    now = Versions.current()
    lines = [f"report written with drlpp {now.drlpp}, torch {now.torch}, Python {now.python}"]
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
    return Section(
        title="Machine, versions, settings",
        lines=tuple(lines),
        table=Table(("setting", "value"), settings),
        commands=tuple(_commands(files)),
    )


def _commands(files: RunFiles) -> Iterator[str]:
    """Yield the command that began the run, and those that lead on from it."""
    if files.record.started_as:
        yield files.record.started_as
    path, profile = files.folder / "placement.json", files.folder / "profile.json"
    if files.placement is not None and path.is_file():
        speeds = () if files.comparison is None else files.comparison.speeds
        placement = shlex.quote(str(path)) + files.placement.model.naming_option
        yield f"drlpp train {placement} --data DATA{speeds_option(speeds)}"
        if files.profile is not None:
            yield (
                f"drlpp show {placement} --timeline simulator --profile "
                f"{shlex.quote(str(profile))} -o timeline.json"
            )
