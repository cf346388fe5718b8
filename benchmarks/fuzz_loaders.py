"""Do loaders survive any bytes? Every kind of file, damaged in many ways.

    python -m benchmarks.fuzz_loaders --inputs 100000

The inputs are shared out among the loaders. Printed are, for each, how many inputs there were and
how many were still valid, and every complaint with the number that makes it again. The exit code is
1 if there is any.
"""

from __future__ import annotations

import os
import random
import resource
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.loader_fuzzing import complaint_about, loaders, mutated
from drlpp.cli.command_line import build_console, run_program

_MOST_MEMORY_BYTES = 8 * 2**30

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    inputs: Annotated[int, typer.Option(help="Over all loaders.")] = 100_000,
    first: Annotated[int, typer.Option(help="Number of the first input.")] = 0,
) -> None:
    """Feed damaged files to every loader."""
    console = build_console()
    # A loader that takes more fails with a MemoryError, which is a complaint.
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    table = Table(title="fuzzed loaders")
    for column in ("loader", "inputs", "complaints"):
        table.add_column(column)
    complaints = 0
    with tempfile.TemporaryDirectory(prefix="drlpp-fuzz-") as name:
        folder = Path(name)
        known = loaders(folder)
        # Where a file that runs code would leave its trace.
        os.chdir(folder)
        each = -(-inputs // len(known))
        for loader_name, loader in known.items():
            found = 0
            for number in range(first, first + each):
                chance = random.Random(f"{loader_name} {number}")
                data = mutated(chance.choice(loader.valid), chance)
                complaint = complaint_about(loader, data, folder / "input")
                if complaint:
                    found += 1
                    console.print(f"{loader_name} {number}: {complaint}", markup=False)
            complaints += found
            table.add_row(loader_name, str(each), str(found))
        if (folder / "trapped").exists():
            complaints += 1
            console.print("a file ran code")
    console.print(table)
    raise typer.Exit(1 if complaints else 0)


if __name__ == "__main__":
    run_program(app, "fuzz_loaders.py")
