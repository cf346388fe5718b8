"""What was measured, in a folder: files of differences and of memory, a line for each."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

from benchmarks.methods_table.differences import Cell
from benchmarks.methods_table.memory import Resident
from benchmarks.methods_table.rows import CellKey
from drlpp.cells import read_results_of

read_cells = partial(read_results_of, "benchmarks.methods_table", Cell)
read_residents = partial(read_results_of, "benchmarks.methods_table", Resident)


def differences_file(folder: Path) -> Path:
    """Return where the cells of a folder are."""
    return folder / "differences.jsonl"


def memory_file(folder: Path) -> Path:
    """Return where the memory of a folder is."""
    return folder / "memory.jsonl"


def of_dtype(found: Iterable[Cell], dtype: str, keys: Collection[CellKey]) -> dict[CellKey, Cell]:
    """Return those of ``keys`` that were run with weights of ``dtype``."""
    wanted = set(keys)
    return {one.key: one for one in found if one.dtype == dtype and one.key in wanted}
