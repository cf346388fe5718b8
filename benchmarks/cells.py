"""Every case of a study once, in processes of this machine.

What comes out is a line in a file, written as soon as it is there, so a study may be interrupted,
and its file says what is left to do.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError

from drlpp.errors import InvalidFile, InvalidInput, WorkerLost
from drlpp.io.documents import Record, first_problem
from drlpp.io.files import append, cut_off, read_lines

_MOST_RUNS = 4
"""Of a cell whose process is killed every time."""

Cell = TypeVar("Cell", bound=Hashable)
Result = TypeVar("Result", bound=Record)


def run_cells(
    run: Callable[[Cell], Result],
    wanted: Callable[[Sequence[Result]], Iterable[Cell]],
    path: Path,
    results: list[Result],
    tell: Callable[[Result], object] = lambda result: None,
    *,
    processes: int = 1,
    alone: bool = False,
) -> list[Result]:
    """Run cells until none is wanted, and append every result to ``path`` as it comes.

    A cell whose process is killed runs again, up to three times. One that raises ends the study.

    Args:
        run: runs a cell; found by its name in a module. It has one thread, unless cells run alone.
        wanted: gives the cells that are still to be run, from all results so far, in the order in
            which they begin.
        path: of the file.
        results: that it has already.
        tell: called with every new result.
        processes: that run cells at the same time.
        alone: whether a cell times the machine, and has it to itself.

    Returns:
        All results, those that were there before first.

    Raises:
        InvalidInput: several processes would time the machine at once.
        WorkerLost: a cell's process was killed four times.
    """
    if alone and processes > 1:
        raise InvalidInput(
            f"{processes} processes were asked for, and each would time a machine that others are "
            "busy on; run one at a time"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    results = list(results)
    running: dict[Future[Result], Cell] = {}
    lost: Counter[Cell] = Counter()
    do = run if alone else partial(_with_one_thread, run)
    pool = _new_pool(processes)
    try:
        while True:
            for cell in wanted(results):
                if len(running) >= processes:
                    break
                if cell in running.values():
                    continue
                try:
                    running[pool.submit(do, cell)] = cell
                except BrokenProcessPool:
                    # When one process is killed, all end, and none is replaced.
                    pool.shutdown()
                    pool = _new_pool(processes)
                    running[pool.submit(do, cell)] = cell
            if not running:
                return results
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                try:
                    result = future.result()
                except BrokenProcessPool as error:
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
        pool.shutdown(cancel_futures=True)


def _new_pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))


def _with_one_thread(run: Callable[[Any], Any], cell: Any) -> Any:
    torch.set_num_threads(1)
    return run(cell)


def read_results_of(study: str, kind: type[Result], path: Path) -> list[Result]:
    """Return all results in ``path``, none if there is no such file.

    A last line that was cut off while it was written is removed from the file.

    Args:
        study: the command that wrote them.
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
