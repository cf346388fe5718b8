"""The page of a run: one file that a browser shows without anything else.

It has a section for each question that the files of the run can answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from statistics import median

from matplotlib import rc_context
from matplotlib.figure import Figure

from drlpp.envs.measuring.memory import finders_text
from drlpp.envs.measuring.policy_curve import policy_curve
from drlpp.errors import InvalidPlacement
from drlpp.io.files import write_atomically
from drlpp.io.formatting import emulation_text
from drlpp.io.run_folder import REPORT_NAME
from drlpp.placement.placement_file import Versions
from drlpp.placement.plan import Plan
from drlpp.planners.map import map_of_ways
from drlpp.planners.problem import PlanningProblem
from drlpp.report import charts
from drlpp.report.run_files import RunFiles
from drlpp.report.tables import (
    Table,
    comparison_table,
    map_table,
    measured_table,
    race_table,
    told_of_race,
)

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} – {command}</title>
<style>
@media print {{ tr, figure, .verdict {{ break-inside: avoid; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
       max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; }}
h2 {{ font-size: 1.15rem; margin-top: 2.5rem; border-bottom: 1px solid #d8d8d8; }}
.verdict {{ background: #f3f3f3; padding: .5rem .8rem; border-left: 4px solid #2B87BF; }}
.below {{ font-size: .9rem; opacity: .8; }}
figure {{ margin: 1rem 0; }}
svg {{ max-width: 100%; height: auto; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #d8d8d8;
         vertical-align: top; min-width: 4rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{command}</p>
"""


def write_report(folder: Path) -> Path:
    """Write the report of a run into its folder, and return its path.

    The page is one file, which loads nothing from elsewhere and runs no program.

    Raises:
        InvalidFile: it is no run's folder.
        StorageFailure: it cannot be written.
    """
    files = RunFiles(folder)
    head = _HEAD.format(title=escape(_title(files)), command=escape(files.record.command))
    parts = (part for section in sections_of(files) for part in _section(section))
    page = "\n".join([head, *parts, "</body>", "</html>"])
    return write_atomically(folder / REPORT_NAME, page.encode())


def _section(section: Section) -> Iterator[str]:
    yield f"<section><h2>{escape(section.title)}</h2>"
    yield from (f'<p class="verdict">{escape(line)}</p>' for line in section.lines)
    if section.chart is not None:
        told = escape(section.told or section.title)
        yield f'<figure role="img" aria-label="{told}">{_svg(section.chart)}</figure>'
    if section.table is not None:
        yield f'<div class="scroll" tabindex="0">{_html(section.table)}</div>'
    if section.below:
        yield f'<p class="below">{escape(section.below)}</p>'
    yield "</section>"


def _html(table: Table) -> str:
    heads = "".join(
        f'<th scope="col">{escape(heading.lstrip(">="))}</th>' for heading in table.headings
    )
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in cells) for cells in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _svg(figure: Figure) -> str:
    text = StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def _title(files: RunFiles) -> str:
    for document in (files.comparison, files.race):
        if document is not None:
            return document.model
    return files.folder.name if files.placement is None else str(files.placement.model)


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Attributes:
        title: the heading.
        lines: sentences above everything.
        chart: under them; None without one.
        told: what the chart shows, for screen readers.
        table: under it.
        below: a sentence about what is shown.
    """

    title: str
    lines: tuple[str, ...] = ()
    chart: Figure | None = None
    told: str = ""
    table: Table | None = None
    below: str = ""


def sections_of(files: RunFiles) -> Iterator[Section]:
    """Yield the sections, the one that most people ask for first."""
    for make in (_race_to_loss, _race, _search, _map, _machine):
        yield from make(files)


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
    lines: list[str] = []
    curve = policy_curve(files.folder / "tensorboard" / "agent_0")
    if files.found_by:
        lines.append(finders_text(files.found_by.values(), policy=bool(curve)))
    try:
        errors = charts.prediction_errors(files)
    except InvalidPlacement as error:
        # Cut at modules or blocks, or a file of another run.
        errors = []
        lines.append(f"not compared with the simulator: {error}")
    if errors:
        lines.append(
            f"the simulator is off by {median(errors):.0%} in the median of {len(errors)} "
            f"placements, by {max(errors):.0%} at most"
        )
    yield Section(
        title="The search",
        lines=tuple(lines),
        chart=charts.policy_chart(curve) if curve else None,
        told="What the policy imagined",
        table=measured_table(files.measured),
    )


def _map(files: RunFiles) -> Iterator[Section]:
    exported, profile, cluster = files.placement, files.profile, files.cluster
    if exported is None or profile is None or cluster is None or not profile.batch_size:
        return
    problem = PlanningProblem.profiled(profile, cluster, exported.method, exported.optimizer)
    plan = Plan(exported.resolve(profile.graph), exported.method)
    if cells := map_of_ways(plan, problem, profile):
        table = map_table(cells)
        yield Section(title="With other links and memory", lines=(table.title,), table=table)


def _machine(files: RunFiles) -> Iterator[Section]:
    settings = sorted(files.record.settings.items())
    rows = [(name, json.dumps(value, ensure_ascii=False)) for name, value in settings]
    rows.insert(0, ("started as", files.record.started_as or "–"))
    now = Versions.current()
    lines = [f"report written with drlpp {now.drlpp}, torch {now.torch}, Python {now.python}"]
    if files.placement is not None:
        measured = files.placement.versions
        lines.append(f"measured with drlpp {measured.drlpp}, torch {measured.torch}")
    yield Section(
        title="Machine, versions, settings",
        lines=tuple(lines),
        table=Table(("setting", "value"), rows),
    )
