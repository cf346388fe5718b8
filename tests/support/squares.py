"""A study for tests of how studies run: every cell is a number, and its result the square."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import read_results_of
from drlpp.io.documents import Record


class Number(Record):
    """A cell.

    Attributes:
        number: to be squared.
        runs: file that gets a letter for every run of the cell.
        deaths: how often its process is killed before it succeeds.
    """

    number: int
    runs: str
    deaths: int = 0


class Square(Record):
    """What comes out."""

    cell: Number
    square: int


class Stay(Record):
    """Where a cell was run, and from when to when, by the clock of all hosts."""

    cell: Number
    host: str
    begin: float
    end: float


def square(cell: Number) -> Square:
    _note_run(cell)
    return Square(cell=cell, square=cell.number**2)


def stay(cell: Number) -> Stay:
    import ray

    begin = time.time()
    time.sleep(0.3)
    host = ray.get_runtime_context().get_node_id()
    return Stay(cell=cell, host=host, begin=begin, end=time.time())


def _note_run(cell: Number) -> None:
    with Path(cell.runs).open("a") as file:
        file.write("x")
    if runs_of(cell) <= cell.deaths:
        os.kill(os.getpid(), signal.SIGKILL)


def runs_of(cell: Number) -> int:
    path = Path(cell.runs)
    return path.stat().st_size if path.exists() else 0


def numbers(folder: Path, count: int = 6, *, dying: int | None = None) -> list[Number]:
    """The cells of a study; the process of one is killed when it is run for the first time."""
    return [
        Number(number=number, runs=str(folder / str(number)), deaths=int(number == dying))
        for number in range(count)
    ]


def read_squares(path: Path) -> list[Square]:
    return read_results_of("tests.support.squares", Square, path)


def read_stays(path: Path) -> list[Stay]:
    return read_results_of("tests.support.squares", Stay, path)


def all_of(
    cells: Sequence[Number], cell_of: Callable[[Any], Number]
) -> Callable[[Sequence[Any]], list[Number]]:
    """What is wanted where the cells are known from the beginning: those without a result."""

    def wanted(results: Sequence[Any]) -> list[Number]:
        done = {cell_of(result) for result in results}
        return [cell for cell in cells if cell not in done]

    return wanted
