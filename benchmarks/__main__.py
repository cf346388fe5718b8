"""Run studies and report what they found.

python -m benchmarks list
python -m benchmarks run search --only accelerators=4 --short
python -m benchmarks report search
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pandas import DataFrame
from rich.progress import Progress

from benchmarks.cells import read_results_of, run_cells
from benchmarks.report import markdown, terminal, write_between
from benchmarks.study import RESULTS, Row, Study, write_csv
from drlpp.cli.command_line import console, run_program
from drlpp.errors import InvalidInput

STUDIES = {
    "search": "benchmarks.search:STUDY",
    "pipedream": "benchmarks.papers.pipedream:TIMES",
    "pipedream-learning": "benchmarks.papers.pipedream:LEARNING",
    "pipedream-clusters": "benchmarks.papers.pipedream_clusters:STUDY",
    "pipeoptim": "benchmarks.papers.pipeoptim:THROUGHPUT",
    "pipeoptim-memory": "benchmarks.papers.pipeoptim_memory:STUDY",
    "to-loss": "benchmarks.learning.to_loss:STUDY",
    "pipeoptim-learning": "benchmarks.papers.pipeoptim:LEARNING",
    "pipemare": "benchmarks.papers.pipemare:STUDY",
    "drl-pp": "benchmarks.papers.drl_pp:STUDY",
    "prediction": "benchmarks.prediction:STUDY",
    "compiled": "benchmarks.compiled:STUDY",
    "worlds": "benchmarks.worlds:STUDY",
    "gpu": "benchmarks.gpu:STUDY",
    "timings": "benchmarks.timings:STUDY",
}
"""Where each study is; imported when it is asked for."""

app = typer.Typer(help=__doc__, pretty_exceptions_enable=False, add_completion=False)
NameArgument = Annotated[str, typer.Argument(help="A study's name, from `list`.")]
RowsOption = Annotated[
    Path | None, typer.Option("--rows", help="File of raw rows (default: runs/NAME.jsonl).")
]


def study_of(name: str) -> Study[Any, Any]:
    """Return a study.

    Raises:
        InvalidInput: there is none of this name.
    """
    if name not in STUDIES:
        raise InvalidInput(f"no study is called '{name}'; expected one of {', '.join(STUDIES)}")
    module, _, attribute = STUDIES[name].partition(":")
    study: Study[Any, Any] = getattr(importlib.import_module(module), attribute)
    return study


@app.command("list")
def list_studies() -> None:
    """List the studies: their questions, what they need, and how many rows are in git."""
    frame = DataFrame(
        {
            "study": study.name,
            "question": study.question,
            "needs": str(study.needs),
            "rows in git": str(len(study.stored()) or "none"),
        }
        for study in map(study_of, STUDIES)
    )
    console.print(terminal(frame, names=3))


@app.command()
def run(
    name: NameArgument,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="FIELD=VALUE", help="Run only such cases; repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds (default: the study's).")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Cases to run at the same time.")] = 1,
    short: Annotated[bool, typer.Option("--short", help="Run few small cases.")] = False,
    rows: RowsOption = None,
) -> None:
    """Run the cases that the file of raw rows does not have yet, then report."""
    study = study_of(name)
    path = rows or Path("runs") / f"{name}{'-short' if short else ''}.jsonl"
    cases = chosen(study.cases(seeds, short=short), only or [])
    known = _raw_rows(study, path)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(study.name, total=len(cases), completed=len(known))
        found = run_cells(
            study.run,
            partial(study.wanted, cases),
            path,
            known,
            lambda _: progress.advance(bar),
            processes=processes,
            alone=study.needs.quiet,
        )
    _show(study, found)


def _raw_rows(study: Study[Any, Any], path: Path) -> list[Any]:
    return read_results_of(f"python -m benchmarks run {study.name}", study.row, path)


def chosen(cases: Sequence[Any], only: Sequence[str]) -> list[Any]:
    """Return the cases whose fields have the values that are asked for.

    Raises:
        InvalidInput: no case has them.
    """
    found = list(cases)
    for text in only:
        field, _, value = text.partition("=")
        found = [case for case in found if str(getattr(case, field, None)) == value]
        if not found:
            known = sorted({str(getattr(case, field, None)) for case in cases})
            raise InvalidInput(f"--only {text}: no such case; {field} is one of {known}")
    return found


@app.command()
def report(
    name: NameArgument,
    rows: Annotated[
        Path | None, typer.Option("--rows", help="Raw rows to report instead of those in git.")
    ] = None,
    store: Annotated[
        bool, typer.Option("--store", help="Also write them to benchmarks/results/NAME.csv.")
    ] = False,
    document: Annotated[
        Path | None,
        typer.Option(help="Write the tables into this page, between the marks of the study."),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the rows into this file.")] = None,
) -> None:
    """Show the tables of a study."""
    study = study_of(name)
    found = study.stored() if rows is None else _raw_rows(study, rows)
    if not found:
        raise InvalidInput(f"{name} has no rows; run it first")
    _show(study, found)
    if store:
        write_csv(RESULTS / f"{name}.csv", found)
    if document is not None:
        marks = f"<!-- {name} -->", f"<!-- end of {name} -->"
        write_between(document, *marks, page_of(study, found))
    if figure is not None and not study.figure(found, figure):
        raise InvalidInput(f"{name} has no figure")


def page_of(study: Study[Any, Any], rows: Sequence[Row]) -> str:
    """Return the answer and the tables as Markdown."""
    tables = study.table(rows).items()
    parts = [f"{title}:\n\n{markdown(table)}" for title, table in tables]
    return "\n\n".join(filter(None, [study.said(rows), *parts]))


def _show(study: Study[Any, Any], rows: Sequence[Row]) -> None:
    for title, table in study.table(rows).items():
        console.print(terminal(table, title, names=2))
    if said := study.said(rows):
        console.print(said)


if __name__ == "__main__":
    run_program(app, "benchmarks")
