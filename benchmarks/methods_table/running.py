"""What a part of the table still wants, and the map that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from benchmarks.methods_table.differences import Cell, Precise, run_cell
from benchmarks.methods_table.memory import Resident, measure_resident, memory_keys
from benchmarks.methods_table.report import worth_doubling
from benchmarks.methods_table.results import (
    differences_file,
    memory_file,
    of_dtype,
    read_cells,
    read_residents,
)
from benchmarks.methods_table.rows import Part
from drlpp.cells import Where, all_of, run_cells


def run_differences(
    parts: Sequence[Part], folder: Path, where: Where, tell: Callable[[Cell], object]
) -> None:
    """Run the cells that there are none of yet; which run in float64 follows from float32's."""

    def wanted(found: Sequence[Cell]) -> Iterator[Precise]:
        for part in parts:
            yield from wanted_of(part, found)

    run_cells(run_cell, wanted, differences_file(folder), read_cells, where, tell)


def wanted_of(part: Part, found: Sequence[Cell]) -> list[Precise]:
    """Return the cells of a part that are to be run next."""
    single = of_dtype(found, "float32", part.keys)
    if missing := [Precise(key, "float32") for key in part.keys if key not in single]:
        return missing
    doubled = worth_doubling(single)
    double = of_dtype(found, "float64", doubled)
    return [Precise(key, "float64") for key in doubled if key not in double]


def run_memory(
    parts: Sequence[Part], folder: Path, where: Where, tell: Callable[[Resident], object]
) -> None:
    """Measure resident memory over weights that is not known yet."""
    keys = [key for part in parts for key in memory_keys(part)]
    wanted = all_of(keys, attrgetter("key"))
    run_cells(measure_resident, wanted, memory_file(folder), read_residents, where, tell)
