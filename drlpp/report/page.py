"""The page of a run: one file that a browser shows without anything else."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from io import StringIO
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from drlpp.io.files import write_atomically
from drlpp.io.run_folder import REPORT_NAME
from drlpp.report.run_files import RunFiles, read_run
from drlpp.report.sections import Section, sections_of
from drlpp.report.tables import Table

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
pre {{ background: #f3f3f3; padding: .6rem; overflow-x: auto; }}
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
    files = read_run(folder)
    path = folder / REPORT_NAME
    write_atomically(path, render(files).encode())
    return path


def render(files: RunFiles) -> str:
    """Return the page as HTML."""
    head = _HEAD.format(title=escape(_title(files)), command=escape(files.record.command))
    parts = (part for section in sections_of(files) for part in _section(section))
    return "\n".join([head, *parts, "</body>", "</html>"])


def _section(section: Section) -> Iterator[str]:
    yield f"<section><h2>{escape(section.title)}</h2>"
    yield from (f'<p class="verdict">{escape(line)}</p>' for line in section.lines)
    if section.chart is not None:
        told = escape(section.told or section.title)
        yield f'<figure role="img" aria-label="{told}">{_svg(section.chart)}</figure>'
    if section.table is not None:
        yield f'<div class="scroll" tabindex="0">{_html(section.table)}</div>'
    yield from (f"<pre>{escape(command)}</pre>" for command in section.commands)
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
