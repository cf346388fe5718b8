"""Does every method compute what its formula says, and how many versions of weights does it hold?

    python -m benchmarks.methods_table        # into README.md here; many minutes

For every method, optimizer and shape of a pipeline: the workers' weights after 50 minibatches in
float32 against the reference executor's, and the versions of its weights that a worker held. For
every method: the memory that its weights took, as the system saw it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.methods_table.differences import Cell, comparison
from benchmarks.methods_table.memory import (
    WIDE_DATA_PARALLEL,
    WIDE_SHAPES,
    memory_meter,
    wide_model,
)
from benchmarks.methods_table.report import BEGIN, END, CellKey, MemoryKey, report, worth_doubling
from benchmarks.methods_table.rows import METHODS, OPTIMIZERS, SHAPES
from benchmarks.report import write_between
from drlpp.cli.command_line import build_console, run_program

README = Path(__file__).with_name("README.md")
GENERIC = ("PipeOptim", "ASGD")
"""A method that predicts, and an optimizer without a rule to predict by."""

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    document: Annotated[
        Path, typer.Option(help="Markdown file with the marks between which the tables go.")
    ] = README,
) -> None:
    """Measure everything and write the tables into the document."""
    console, started = build_console(), time.monotonic()
    # A document without the marks is refused before all the work, not after.
    write_between(document, BEGIN, END, "Being measured.\n")
    cells: dict[CellKey, Cell] = {}
    for method in METHODS:
        keys = [(method, optimizer, shape) for optimizer in OPTIMIZERS for shape in SHAPES]
        cells |= differences(keys, "float32")
        largest = max(cells[key].difference for key in keys)
        console.print(f"{method}: the largest difference is {largest:.1e}")
    doubles = differences(worth_doubling(cells), "float64")
    memory, generic_memory = measure_memory(console)
    write_between(document, BEGIN, END, report(cells, doubles, memory, generic_memory))
    console.print(f"{document} is written, after {time.monotonic() - started:.0f} s")


def differences(keys: Iterable[CellKey], dtype: str) -> dict[CellKey, Cell]:
    """Run cells; all shapes of data parallelism are one."""
    cells: dict[CellKey, Cell] = {}
    first = next(iter(SHAPES))
    with comparison(dtype) as workers:
        for method, optimizer, shape in keys:
            row = METHODS[method]
            known = cells.get((method, optimizer, first)) if row.data_parallel else None
            cell = known or workers.cell(row, OPTIMIZERS[optimizer], shape)
            cells[method, optimizer, shape] = cell
    return cells


def measure_memory(console: Console) -> tuple[dict[MemoryKey, float], dict[MemoryKey, float]]:
    """Measure resident memory over weights: methods with SGDM, and PipeOptim without a rule."""
    memory: dict[MemoryKey, float] = {}
    generic_memory: dict[MemoryKey, float] = {}
    captured, optimizer = wide_model(), OPTIMIZERS["SGDM"]
    for shape, placement in WIDE_SHAPES.items():
        with memory_meter(captured, placement) as meter:
            for name, row in METHODS.items():
                if not row.data_parallel:
                    memory[name, shape] = meter.versions(row, optimizer)
                    console.print(f"{name}, {shape}: {memory[name, shape]:.2f} × its weights")
            name, without_rule = GENERIC
            generic_memory[name, shape] = meter.versions(METHODS[name], OPTIMIZERS[without_rule])
    with memory_meter(captured, WIDE_DATA_PARALLEL) as meter:
        for name, row in METHODS.items():
            if row.data_parallel:
                memory |= dict.fromkeys(
                    ((name, shape) for shape in WIDE_SHAPES), meter.versions(row, optimizer)
                )
    return memory, generic_memory


if __name__ == "__main__":
    run_program(app, "benchmarks.methods_table")
