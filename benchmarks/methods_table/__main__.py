"""Does every method compute what its formula says, and how many versions of weights does it hold?

    python -m benchmarks.methods_table run        # many minutes; resumable, interrupt it at will
    python -m benchmarks.methods_table report     # the tables, into the README beside this file

For every method, optimizer and shape of a pipeline: the workers' weights after 50 minibatches in
float32 against the reference executor's, and the versions of its weights that a worker held. For
every method: the memory that its weights took, as the system saw it. ``--part`` chooses a part of
the page.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.methods_table.differences import Cell
from benchmarks.methods_table.memory import Resident, memory_keys
from benchmarks.methods_table.report import marks, report, worth_doubling
from benchmarks.methods_table.results import (
    differences_file,
    memory_file,
    of_dtype,
    read_cells,
    read_residents,
)
from benchmarks.methods_table.rows import PARTS
from benchmarks.methods_table.running import run_differences, run_memory
from benchmarks.options import ClusterOption, ProcessesOption
from benchmarks.report import write_between
from drlpp.cells import Where
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import InvalidInput

README = Path(__file__).with_name("README.md")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

Folder = Annotated[Path, typer.Option("--results", help="Folder of results, one in a line.")]
PartNames = Annotated[list[str] | None, typer.Option("--part", help="Only this; may be repeated.")]
DEFAULT_RESULTS = Path(__file__).with_name("results")


@app.command("run")
def run_parts(
    results: Folder = DEFAULT_RESULTS,
    part: PartNames = None,
    processes: ProcessesOption = 1,
    cluster: ClusterOption = None,
) -> None:
    """Measure what the folder of results does not have yet."""
    console, started = build_console(), time.monotonic()
    chosen, where = [PARTS[name] for name in _chosen(part)], Where(processes, cluster)

    def tell_cell(found: Cell) -> None:
        console.print(f"{', '.join(found.key)}, {found.dtype}: {found.difference:.1e}")

    def tell_memory(found: Resident) -> None:
        console.print(f"{', '.join(found.key)}: {found.versions:.2f} × its weights")

    run_differences(chosen, results, where, tell_cell)
    run_memory(chosen, results, where, tell_memory)
    console.print(f"all is in {results}, after {time.monotonic() - started:.0f} s")


@app.command("report")
def write_report(
    results: Folder = DEFAULT_RESULTS,
    part: PartNames = None,
    document: Annotated[
        Path, typer.Option(help="Markdown file with the marks between which the tables go.")
    ] = README,
) -> None:
    """Write the parts of which all is measured into the document; others stay as they are there."""
    console = build_console()
    found = read_cells(differences_file(results))
    memory = {one.key: one.versions for one in read_residents(memory_file(results))}
    for name in _chosen(part):
        chosen = PARTS[name]
        cells = of_dtype(found, "float32", chosen.keys)
        wanted = worth_doubling(cells)
        doubles = of_dtype(found, "float64", wanted)
        parts_of_memory = memory_keys(chosen)
        measured = sum(key in memory for key in parts_of_memory)
        missing = len(chosen.keys) + len(wanted) + len(parts_of_memory)
        missing -= len(cells) + len(doubles) + measured
        if missing:
            console.print(f"{name}: {missing} results are missing; the part stays as it is")
            continue
        write_between(document, *marks(name), report(chosen, cells, doubles, memory))
        console.print(f"{name}: written into {document}", soft_wrap=True)


def _chosen(parts: list[str] | None) -> list[str]:
    """Return what is asked for, or all there is.

    Raises:
        InvalidInput: if there is no such part.
    """
    for one in parts or ():
        if one not in PARTS:
            raise InvalidInput(f"part {one!r} is unknown; there are {', '.join(PARTS)}")
    return parts or [*PARTS]


if __name__ == "__main__":
    run_program(app, "benchmarks.methods_table")
