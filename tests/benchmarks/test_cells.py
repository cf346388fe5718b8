"""Cells of a study: each once, whatever is interrupted or killed."""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import cells
from benchmarks.cells import read_results_of, run_cells
from drlpp.errors import InvalidInput
from drlpp.io.documents import Record


class Number(Record):
    """A cell: its process is killed so often; ``runs`` is a file with a letter for every run."""

    number: int
    runs: str
    deaths: int = 0


class Square(Record):
    cell: Number
    square: int


def square(cell: Number) -> Square:
    with Path(cell.runs).open("a") as file:
        file.write("x")
    if runs_of(cell) <= cell.deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return Square(cell=cell, square=cell.number**2)


def runs_of(cell: Number) -> int:
    path = Path(cell.runs)
    return path.stat().st_size if path.exists() else 0


def numbers(folder: Path, count: int = 6) -> list[Number]:
    return [Number(number=number, runs=str(folder / str(number))) for number in range(count)]


def read(path: Path) -> list[Square]:
    return read_results_of(__name__, Square, path)


def squared(
    cells: Sequence[Number],
    path: Path,
    processes: int = 1,
    tell: Callable[[Square], object] = lambda result: None,
) -> list[Square]:
    def wanted(results: Sequence[Square]) -> list[Number]:
        done = {result.cell for result in results}
        return [cell for cell in cells if cell not in done]

    return run_cells(square, wanted, path, read(path), tell, processes=processes)


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run cells in this process, which is faster to begin."""
    monkeypatch.setattr(cells, "ProcessPoolExecutor", lambda size, _: ThreadPoolExecutor(size))


@pytest.mark.usefixtures("in_threads")
def test_an_interrupted_study_continues(tmp_path: Path) -> None:
    path, wanted = tmp_path / "folder" / "results.jsonl", numbers(tmp_path)
    squared(wanted[4:5], path)
    told: list[Square] = []

    def interrupt(result: Square) -> None:
        told.append(result)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        squared(wanted, path, tell=interrupt)
    assert [result.square for result in read(path)] == [16, 0, 1]
    # The next line was cut off.
    with path.open("a") as file:
        file.write(path.read_text()[:20])
    found = squared(wanted, path, 2)
    assert sorted(result.square for result in found) == [0, 1, 4, 9, 16, 25]
    assert squared(wanted, path, 2) == found == read(path)
    assert sum(map(runs_of, wanted)) == len(wanted)


def test_cells_that_time_the_machine_run_one_by_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="2 processes were asked for, and each would time"):
        run_cells(square, lambda _: [], tmp_path / "none", [], processes=2, alone=True)
