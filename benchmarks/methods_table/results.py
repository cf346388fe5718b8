"""What was measured, in a folder: files of differences and of memory, a line for each."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from benchmarks.cells import read_results_of
from benchmarks.methods_table.differences import Cell
from benchmarks.methods_table.memory import Resident
from benchmarks.methods_table.rows import CellKey
from drlpp.io.json_lines import append

_STUDY = "benchmarks.methods_table"


class Results:
    """All cells and all memory that a folder has, and what comes.

    Args:
        folder: made if there is none.

    Raises:
        InvalidFile: if a line of a file is no result.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._cells_file, self._memory_file = (
            folder / f"{name}.jsonl" for name in ("differences", "memory")
        )
        found = read_results_of(_STUDY, Cell, self._cells_file)
        self._cells = {(cell.key, cell.dtype): cell for cell in found}
        measured = read_results_of(_STUDY, Resident, self._memory_file)
        self.memory: dict[CellKey, float] = {one.key: one.versions for one in measured}

    def cells(self, dtype: str, keys: Collection[CellKey]) -> dict[CellKey, Cell]:
        """Return those of ``keys`` that were run with weights of ``dtype``."""
        return {key: self._cells[key, dtype] for key in keys if (key, dtype) in self._cells}

    def add(self, cell: Cell) -> None:
        """Keep a cell."""
        append(self._cells_file, cell)
        self._cells[cell.key, cell.dtype] = cell

    def add_memory(self, measured: Resident) -> None:
        """Keep what memory was measured."""
        append(self._memory_file, measured)
        self.memory[measured.key] = measured.versions
