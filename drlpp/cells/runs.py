"""Every cell once: what comes out is a line in a file, written as soon as it is there.

So a study may be interrupted, and its file says what is left to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from drlpp.cells.runners import Where, runners_on
from drlpp.errors import InvalidFile, WorkerLost
from drlpp.io.documents import Record, first_problem
from drlpp.io.json_lines import append, cut_off, read_lines

_MOST_RUNS = 4
"""Of a cell whose process is killed every time."""

Cell = TypeVar("Cell", bound=Hashable)
Result = TypeVar("Result", bound=Record)


def run_cells(
    run: Callable[[Cell], Result],
    wanted: Callable[[Sequence[Result]], Iterable[Cell]],
    path: Path,
    read: Callable[[Path], list[Result]],
    where: Where,
    tell: Callable[[Result], object] = lambda result: None,
) -> list[Result]:
    """Run cells until none is wanted, and append every result to ``path`` as it comes.

    A cell whose process is killed runs again, up to three times. One that raises ends the study.

    Args:
        run: runs a cell; found by its name in a module. It has one thread, unless cells run alone.
        wanted: gives the cells that are still to be run, from all results so far, in the order in
            which they begin.
        path: results, one in a line; made if there is none.
        read: returns the results in it.
        where: to run them.
        tell: called with every new result.

    Returns:
        All results, those that were there before first.

    Raises:
        WorkerLost: a cell's process was killed four times.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    results = read(path)
    running: dict[Future[Result], Cell] = {}
    lost: Counter[Cell] = Counter()
    runners = runners_on(where)
    try:
        while True:
            size = runners.size
            for cell in wanted(results):
                if len(running) >= size:
                    break
                if cell not in running.values():
                    running[runners.submit(run, cell)] = cell
            if not running:
                return results
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                try:
                    result = future.result()
                except runners.losses as error:
                    lost[cell] += 1
                    if lost[cell] == _MOST_RUNS:
                        raise WorkerLost(
                            f"the process that ran {cell} was killed {_MOST_RUNS} times: memory "
                            "may be short for so many at the same time"
                        ) from error
                    continue
                append(path, result)
                tell(result)
                results.append(result)
    finally:
        runners.close()


def read_results_of(study: str, kind: type[Result], path: Path) -> list[Result]:
    """Return all results in ``path``, none if there is no such file.

    A last line that was cut off while it was written is removed from the file.

    Args:
        study: the module that wrote them.
        kind: of a line.
        path: of the file.

    Raises:
        InvalidFile: if a line is no result.
    """
    lines, rest = read_lines(path)
    cut_off(path, rest)
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            results.append(kind.model_validate_json(line))
        except ValidationError as error:
            raise InvalidFile(
                f"{path}, line {number}: {first_problem(error)}; expected a result that {study} "
                "wrote"
            ) from None
    return results


def all_of(
    cells: Sequence[Cell], cell_of: Callable[[Result], Cell]
) -> Callable[[Sequence[Result]], list[Cell]]:
    """Return what is wanted where the cells are known from the beginning: those without a result.

    Args:
        cells: of the study.
        cell_of: gives the cell of a result.
    """

    def wanted(results: Sequence[Result]) -> list[Cell]:
        done = {cell_of(result) for result in results}
        return [cell for cell in cells if cell not in done]

    return wanted
