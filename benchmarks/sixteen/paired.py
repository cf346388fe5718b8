"""Two files of runs of the same cells, one with a policy and one without, in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy
import typer
from pandas import DataFrame

from benchmarks.learning.comparisons import paired_difference
from benchmarks.report import terminal
from benchmarks.sixteen.runs import Run, read_runs
from drlpp.cli.command_line import build_console
from drlpp.errors import InvalidInput

MEASUREMENTS = (0, 4, 8, 16)


def against(
    results: Annotated[Path, typer.Argument(help="A file of runs.")],
    others: Annotated[Path, typer.Argument(help="What they are compared with.")],
) -> None:
    """Compare the runs of cells that both files have.

    Raises:
        InvalidInput: there are none.
    """
    found, other = ({one.cell: one for one in read_runs(path)} for path in (results, others))
    both = [cell for cell in found if cell in other]
    if not both:
        raise InvalidInput(f"{results} and {others} have no cell in common")
    rows = paired([found[cell] for cell in both], [other[cell] for cell in both])
    build_console().print(terminal(rows, f"Gap to the best known in {len(both)} cells, %"))


def paired(mine: Sequence[Run], others: Sequence[Run]) -> DataFrame:
    """Return gaps of two runs of each cell, to the best that either of them knows.

    *better* and *worse* are by more than 1%.
    """
    best = {
        one.cell: min(one.best_known, other.best_known)
        for one, other in zip(mine, others, strict=True)
    }

    def gaps_of(runs: Sequence[Run], measurements: int) -> list[float]:
        return [(1 + one.gap(measurements)) * one.best_known / best[one.cell] - 1 for one in runs]

    rows = []
    for measurements in MEASUREMENTS:
        first, second = gaps_of(mine, measurements), gaps_of(others, measurements)
        by = numpy.array(first) - numpy.array(second)
        better, worse = (by < -0.01).sum(), (by > 0.01).sum()
        rows.append(
            {
                "measurements": str(measurements),
                "median / worst": _median_and_worst(first),
                "the others'": _median_and_worst(second),
                "better / equal / worse": f"{better} / {len(by) - better - worse} / {worse}",
                "difference": paired_difference(first, second),
            }
        )
    return DataFrame(rows)


def _median_and_worst(gaps: Sequence[float]) -> str:
    return f"{100 * numpy.median(gaps):.1f} / {100 * max(gaps):.1f}"
