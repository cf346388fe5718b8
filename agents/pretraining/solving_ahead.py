"""Problems that are solved before training begins, by many processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

from drlpp.agents.pretraining.problems import (
    ACCELERATORS,
    OPERATORS,
    SolvedProblem,
    draw_anything,
    solved_if_taken,
)
from drlpp.io.documents import Record
from drlpp.io.json_lines import append, cut_off, read_lines
from drlpp.placement.placement import Placement, Stage


class Number(NamedTuple):
    """A problem of a pre-training: its number, and the seed of all."""

    seed: int
    number: int


class Solution(Record):
    """A problem's optimum, from which and from its numbers it is made again.

    Attributes:
        cell: seed and number.
        attempt: of drawing, which was the first whose problem is taken.
        optimum: stages of the fastest placement by the rule.
        imitated: those of :attr:`~drlpp.agents.pretraining.problems.SolvedProblem.imitated`.
    """

    cell: Number
    attempt: int
    optimum: tuple[Stage, ...]
    imitated: tuple[Stage, ...]

    @property
    def solved(self) -> SolvedProblem:
        """The problem, which is drawn again, with its optimum."""
        family, problem = draw_anything(_draw(self.cell, self.attempt), OPERATORS, ACCELERATORS)
        optimum, imitated = Placement(stages=self.optimum), Placement(stages=self.imitated)
        return SolvedProblem.of(family, problem, optimum, imitated)


def solve_ahead(
    seed: int,
    problems: int,
    path: Path,
    processes: int,
    tell: Callable[[Solution], object] = lambda solution: None,
) -> Iterator[SolvedProblem]:
    """Solve problems that ``path`` has no solution of yet, and yield all in their order.

    Args:
        seed: of all that is drawn.
        problems: how many.
        path: file of solutions, which other seeds may share.
        processes: that solve them at the same time.
        tell: called with every new one.
    """
    lines, rest = read_lines(path)
    cut_off(path, rest)
    solution_of = {one.cell: one for one in map(Solution.model_validate_json, lines)}
    cells = [Number(seed, number) for number in range(problems)]
    missing = [cell for cell in cells if cell not in solution_of]
    path.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(solution, cell) for cell in missing]):
            found = future.result()
            append(path, found)
            tell(found)
            solution_of[found.cell] = found
    return (solution_of[cell].solved for cell in cells)


def solution(cell: Number) -> Solution:
    """Draw until a problem is taken, and solve it."""
    for attempt in count():
        if solved := solved_if_taken(_draw(cell, attempt)):
            return Solution(
                cell=cell,
                attempt=attempt,
                optimum=solved.optimum.stages,
                imitated=solved.imitated.stages,
            )
    raise AssertionError


def _draw(cell: Number, attempt: int) -> Random:
    return Random(f"pre-training {cell.seed} {cell.number} {attempt}")
