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
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.methods_table.differences import comparison
from benchmarks.methods_table.memory import (
    WIDE_DATA_PARALLEL,
    WIDE_SHAPES,
    Resident,
    memory_keys,
    memory_meter,
    wide_model,
)
from benchmarks.methods_table.report import marks, report, worth_doubling
from benchmarks.methods_table.results import Results
from benchmarks.methods_table.rows import METHODS, OPTIMIZERS, PARTS, SHAPES, CellKey
from benchmarks.report import write_between
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import InvalidInput

README = Path(__file__).with_name("README.md")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

Folder = Annotated[Path, typer.Option("--results", help="Folder of results, one in a line.")]
PartNames = Annotated[list[str] | None, typer.Option("--part", help="Only this; may be repeated.")]
DEFAULT_RESULTS = Path(__file__).with_name("results")


@app.command("run")
def run_parts(results: Folder = DEFAULT_RESULTS, part: PartNames = None) -> None:
    """Measure what the folder of results does not have yet."""
    console, started = build_console(), time.monotonic()
    # The reference executor's tensors are so small that threads wait longer than they compute.
    torch.set_num_threads(1)
    chosen, found = _chosen(part), Results(results)
    for name in chosen:
        keys = PARTS[name].keys
        measure_differences(keys, "float32", found, console)
        doubles = worth_doubling(found.cells("float32", keys))
        measure_differences(doubles, "float64", found, console)
        measure_memory(memory_keys(PARTS[name]), found, console)
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
    found = Results(results)
    for name in _chosen(part):
        chosen = PARTS[name]
        cells = found.cells("float32", chosen.keys)
        wanted = worth_doubling(cells)
        doubles = found.cells("float64", wanted)
        parts_of_memory = memory_keys(chosen)
        measured = sum(key in found.memory for key in parts_of_memory)
        missing = len(chosen.keys) + len(wanted) + len(parts_of_memory)
        missing -= len(cells) + len(doubles) + measured
        if missing:
            console.print(f"{name}: {missing} results are missing; the part stays as it is")
            continue
        write_between(document, *marks(name), report(chosen, cells, doubles, found.memory))
        console.print(f"{name}: written into {document}", soft_wrap=True)


def measure_differences(
    keys: Collection[CellKey], dtype: str, found: Results, console: Console
) -> None:
    """Run the cells that there are none of yet; all shapes of data parallelism are one."""
    known = found.cells(dtype, keys)
    missing = [key for key in keys if key not in known]
    if not missing:
        return
    first = next(iter(SHAPES))
    with comparison(dtype) as workers:
        for key in missing:
            method, optimizer, shape = key
            same = known.get((method, optimizer, first)) if METHODS[method].data_parallel else None
            cell = same.model_copy(update={"shape": shape}) if same else workers.cell(key)
            known[key] = cell
            found.add(cell)
            console.print(f"{', '.join(key)}, {dtype}: {cell.difference:.1e}")


def measure_memory(keys: Collection[CellKey], found: Results, console: Console) -> None:
    """Measure resident memory over weights that is not known yet.

    Data parallelism, the same in all shapes, needs workers that have held nothing else.
    """
    missing = [key for key in keys if key not in found.memory]
    alike = [key for key in missing if METHODS[key[0]].data_parallel]
    own = {shape: [key for key in missing if key[2] == shape] for shape in WIDE_SHAPES}
    for placement, these in [
        *((WIDE_SHAPES[shape], [key for key in own[shape] if key not in alike]) for shape in own),
        (WIDE_DATA_PARALLEL, alike),
    ]:
        if not these:
            continue
        with memory_meter(wide_model(), placement) as meter:
            for method, optimizer, shape in these:
                versions = meter.versions(METHODS[method], OPTIMIZERS[optimizer])
                found.add_memory(
                    Resident(method=method, optimizer=optimizer, shape=shape, versions=versions)
                )
                console.print(f"{method}, {optimizer}, {shape}: {versions:.2f} × its weights")


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
